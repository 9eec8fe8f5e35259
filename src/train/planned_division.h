/// How the planner divides the model among a run's ranks, asked for at the start and again while the run goes on.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <vector>

#include "jobs/parallel.h"
#include "plan/shapes/job_shape.h"
#include "schedule/pipeline/rank_plan.h"

namespace cotune {

struct PlannedDivision {
  Parallel parallel;
  std::vector<PipelineLayout> layouts;  ///< of its replicas; empty: stages are cut by predicted cost
  double seconds = 0;                   ///< predicted, of a step of every job
  int64_t rank_weight_bytes = 0;        ///< that frozen weights take at most on a rank that is a process; 0 of threads, which share them
};

/// The jobs that run now, and what was measured.
struct DivisionRequest {
  std::vector<JobShape> jobs;           ///< JobShape::adapters are of the job's place here
  double time_ratio = 1;                ///< what work takes over what was predicted at first
  Parallel running;
  std::vector<int64_t> tensor_degrees;  ///< that there are parts of the weights for; empty: any, for ranks read what they need
  const std::atomic<bool>* stop = nullptr;  ///< true: the answer is no longer waited for; it ends soon, by an exception
};

struct DivisionAnswer {
  PlannedDivision best;
  double kept_seconds = 0;  ///< of a step of the same jobs as the model is divided; 0: it does not fit, or was not compared
};

/// Pure; may be called on any thread. Nothing where no division takes all ranks and fits.
using PlanDivision = std::function<std::optional<DivisionAnswer>(const DivisionRequest&)>;

}  // namespace cotune
