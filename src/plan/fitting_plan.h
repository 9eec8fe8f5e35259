/// Whether some plan fits, found by planning: the least memory with which one does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/cost/stage_memory.h"
#include "plan/plan_options.h"
#include "plan/shapes/cluster.h"
#include "plan/shapes/job_shape.h"

namespace cotune {

/// What is planned. What is given must outlive it.
struct FittingProblem {
  const ModelConfig& model;
  ClusterSpec cluster;
  const std::vector<JobShape>& jobs;
  const PlanOptions& options;
};

struct FittingPlan {
  std::string replicas;     ///< `<1,4>×1`, and whether it recomputes
  int64_t devices = 0;      ///< of all replicas
  StageMemory memory;       ///< of the fullest device
  int64_t limit_bytes = 0;  ///< that each device may take
};

/// A plan as make_plan tries them, on these nodes alone; nothing where none fits. Throws PlanningStopped, as the others do.
std::optional<FittingPlan> plan_that_fits(const FittingProblem& problem, const NodeGroup& group);
/// With so many bytes per device, all of which tensors may take.
std::optional<FittingPlan> plan_with_memory(const FittingProblem& problem, NodeGroup group, int64_t bytes);

/// With the least memory per device, all of which tensors may take, in steps of what bytes_text shows: a step less does not do. On `group` as it is
/// no plan may fit. Nothing where a thousand times its memory does not do. Some fifteen times the work of planning.
std::optional<FittingPlan> plan_in_least_memory(const FittingProblem& problem, const NodeGroup& group);

}  // namespace cotune
