/// What a whole plan is predicted to take, from what its replicas are.
#pragma once

#include <vector>

#include "plan/plan.h"
#include "plan/shapes/job_shape.h"

namespace cotune {

/// What adapter gradients are exchanged over: the node's link where all replicas stand in one node, else the network.
LinkSpec exchange_link(const Plan& plan, const ClusterSpec& cluster);

/// Adapter parameters on the fullest of the replica's ranks.
int64_t exchanged_parameters(const PlannedReplica& replica, const ModelConfig& model, const std::vector<JobShape>& jobs);

/// All-reduce of so many gradients, f32, between so many replicas; 0 with one.
double exchange_seconds(int64_t parameters, int64_t replicas, const LinkSpec& link);

/// Ring all-reduce of adapter gradients, f32, on the rank that holds most of them; 0 with one replica.
double exchange_seconds(const Plan& plan, const ModelConfig& model, const std::vector<JobShape>& jobs, const LinkSpec& link);

/// PredictedStep of the plan's replicas, whether they fit or not. Devices are all of the kind of nodes that the first replica stands
/// on.
PredictedStep predicted_step(const Plan& plan, const ModelConfig& model, const ClusterSpec& cluster,
                             const std::vector<JobShape>& jobs);

}  // namespace cotune
