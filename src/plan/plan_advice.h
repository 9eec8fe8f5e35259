/// What would fit, where nothing does.
#pragma once

#include <string>
#include <vector>

#include "plan/plan_options.h"
#include "plan/shapes/job_shape.h"

namespace cotune {

/// In words and numbers: the configuration of the cluster that needs the least memory per device for the longest row, how much
/// that is, of what there is, and its largest term; the fewest nodes of each kind on which some configuration fits, up to 64
/// times as many; and the longest rows that fit as it is. Where options.token_budget is given, and not only batch-all is tried, the memory is found
/// by planning with it (fitting_plan.h) on up to 16 devices, and which budget would do with less is said beside it. Where the longest row fits, and
/// only the rows that `options` have beside it in a microbatch do not, or run.token_budget cuts it where it would fit whole: the largest microbatch
/// that fits, and which option asks for another. Recomputation and sharded weights, as options.savings has them, are among the configurations.
/// All of it is said of rows that need share a microbatch with no other: where only batch-all is tried, which has them share it, the text says
/// so.
std::string advise(const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs,
                   const PlanOptions& options);

/// What is assumed between nodes, for more of them than there are, where the cluster file has no network: the name of a link_preset,
/// infiniband-200, or ethernet-10 between CPUs. "" where it has one.
std::string assumed_network(const ClusterSpec& cluster, const NodeGroup& group);
/// The same cluster with that network.
ClusterSpec with_network(ClusterSpec cluster, const NodeGroup& group);

}  // namespace cotune
