/// What would fit, where nothing does.
#pragma once

#include <string>
#include <vector>

#include "plan/cost/replica_costs.h"
#include "plan/shapes/job_shape.h"

namespace cotune {

/// In words and numbers: the configuration of the cluster that needs the least memory per device for the
/// longest row, how much that is, of what there is, and its largest term; the fewest nodes of each kind on
/// which some configuration fits, up to 64 times as many; and the longest rows that fit as it is.
std::string advise(const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs,
                   const std::string& dtype, const ReplicaLimits& limits);

}  // namespace cotune
