#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "jobs/parallel.h"
#include "model/config/model_config.h"
#include "schedule/pipeline/rank_plan.h"
#include "train/device_costs.h"
#include "train/rank_planner.h"
#include "train/training_job.h"

namespace cotune {

/// What `run.parallel: auto` is planned from.
struct DivisionQuestion {
  const JobsFile& jobs_file;
  const ModelConfig& model;
  std::span<const JobData> data;       ///< of each job
  const DeviceCosts& costs;            ///< of one rank
  int64_t memory_bytes = 0;            ///< that one rank may take
  int64_t hosts = 1;                   ///< that run.ranks ranks are spread over, as many on each
  std::string dtype;                   ///< bfloat16, float32
  bool may_divide_layers = true;
};

struct PlannedDivision {
  Parallel parallel;
  std::vector<PipelineLayout> layouts;  ///< of its replicas
  double seconds = 0;                   ///< predicted, of a step of every job
};

/// The division of all run.ranks ranks for which make_plan predicts the shortest step of all jobs, under the run's sharing, layout and
/// token budget: degrees, alike or not, and layers by stage. Nothing where no plan takes all ranks and fits. Throws as make_plan and
/// job_shapes do.
std::optional<PlannedDivision> plan_division(const DivisionQuestion& question);

/// What plan_division chooses becomes run.parallel, and is told on standard error. Returns the layouts; none where nothing takes all
/// ranks and fits: they are then stages. Throws UserError where the model has too few layers for that. run: the question's.
std::vector<PipelineLayout> divide_as_planned(RunSpec& run, const DivisionQuestion& question);

}  // namespace cotune
