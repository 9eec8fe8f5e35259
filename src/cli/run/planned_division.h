#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "jobs/parallel.h"
#include "model/config/model_config.h"
#include "plan/shapes/weight_forms.h"
#include "train/device_costs.h"
#include "train/planned_division.h"
#include "train/training_job.h"

namespace cotune {

/// What `run.parallel: auto` is planned from. What it refers to must outlive the calls.
struct DivisionQuestion {
  const RunSpec& run;
  const ModelConfig& model;
  const DeviceCosts& costs;            ///< of one rank
  int64_t memory_bytes = 0;            ///< that tensors of one process may take: of a rank, or of all of them where they are threads
  WeightForms weights;                 ///< of the model in one process; are_shared: ranks are threads
  int64_t hosts = 1;                   ///< that run.ranks ranks are spread over, as many on each
  std::string dtype;                   ///< bfloat16, float32
  bool may_divide_layers = true;
  bool may_be_sequence_parallel = true;       ///< where layers are divided; its ranks then wait for every collective
  bool may_shard_weights = false;      ///< ranks are processes that can
};

/// The jobs of a jobs file, with the lengths of their data. Throws as job_shapes does.
std::vector<JobShape> shapes_of(const JobsFile& jobs_file, std::span<const JobData> data, const ModelConfig& model);

/// The division of all run.ranks ranks for which make_plan predicts the shortest step of all jobs, under the run's sharing, layout and
/// token budget: degrees, alike or not, and layers by stage. Weights count as they are held; of threads, one set for each degree to which
/// layers are divided. Nothing where no plan takes all ranks and fits. Throws as make_plan does.
std::optional<PlannedDivision> plan_division(const DivisionQuestion& question, const std::vector<JobShape>& jobs);

/// The same while the run goes on: among divisions that there are weights for, with prices as they were measured, and what a step takes as
/// the ranks are divided now.
std::optional<DivisionAnswer> plan_division_anew(const DivisionQuestion& question, const DivisionRequest& request);

/// What plan_division chooses becomes run.parallel, and is told on standard error. Returns the layouts; none where nothing takes all
/// ranks and fits: they are then stages. Throws UserError where the model has too few layers for that. run: the question's.
std::vector<PipelineLayout> divide_as_planned(RunSpec& run, const DivisionQuestion& question, const std::vector<JobShape>& jobs);

}  // namespace cotune
