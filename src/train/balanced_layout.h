/// How ranks divide the model where neither a plan nor the planner says it.
#pragma once

#include <vector>

#include "jobs/parallel.h"
#include "plan/shapes/job_shape.h"
#include "schedule/pipeline/rank_plan.h"
#include "train/device_costs.h"

namespace cotune {

/// Divides the model among the ranks of a replica: stages are cut by cost (balanced_stages). jobs: all of the run, for where its time
/// goes. At most as many stages as layers.
PipelineLayout balanced_layout(const ModelConfig& model, const std::vector<JobShape>& jobs, const DeviceCosts& costs,
                               const PackingPolicy& policy, const ReplicaDegrees& degrees);

/// Of all replicas.
std::vector<PipelineLayout> balanced_layouts(const ModelConfig& model, const std::vector<JobShape>& jobs, const DeviceCosts& costs,
                                             const PackingPolicy& policy, const Parallel& parallel);

}  // namespace cotune
