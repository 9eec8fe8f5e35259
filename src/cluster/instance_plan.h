/// A plan of one replica whose shape is given: what `cotune simulate --jobs` runs without a plan.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/plan.h"
#include "plan/plan_options.h"
#include "plan/shapes/job_shape.h"

namespace cotune {

struct InstanceSettings {
  int64_t tensor_parallel = 1;
  int64_t pipeline_stages = 1;
  Sharing sharing = Sharing::hybrid;
  std::optional<int64_t> token_budget;  ///< of microbatches, taken as it is; none: the one with the shortest simulated step
};

/// All jobs on the first devices of the cluster, whose nodes must be alike, with the rows of typical_step. Hybrid tasks, buckets and order
/// are those that planning chooses for such a replica (ReplicaPlanner); layout, chunk size, dtype, profile and recomputation are those of
/// `options`, and automatic recomputation recomputes where nothing fits without. file_name: of the cluster, in messages. Throws UserError for a shape
/// that model or cluster do not allow, with those that they do, and where the jobs do not fit, with what overflows and what would hold them (advise).
Plan plan_instance(const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs,
                   const InstanceSettings& settings, const PlanOptions& options, const std::string& file_name = "cluster");

}  // namespace cotune
