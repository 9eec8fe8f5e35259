/// What would fit, where nothing does.
#pragma once

#include <string>
#include <vector>

#include "plan/plan_options.h"
#include "plan/shapes/job_shape.h"

namespace cotune {

/// In words and numbers: the configuration of the cluster that needs the least memory per device for the longest row, how much
/// that is, of what there is, and its largest term; the fewest nodes of each kind on which some configuration fits, up to 64
/// times as many; and the longest rows that fit as it is. Where the longest row fits, and only the rows that `options` have beside it
/// in a microbatch do not: the largest microbatch that fits, and which option asks for more. Recomputation and sharded weights, as
/// options.savings has them, are among the configurations.
std::string advise(const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs,
                   const PlanOptions& options);

/// The same cluster with a network, for more nodes than there are: where it has none, the link inside a node of `group`, or
/// 200 Gbit/s InfiniBand.
ClusterSpec with_network(ClusterSpec cluster, const NodeGroup& group);

}  // namespace cotune
