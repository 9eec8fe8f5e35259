/// What would fit, where nothing does.
#pragma once

#include <string>
#include <vector>

#include "plan/plan_options.h"
#include "plan/shapes/job_shape.h"

namespace cotune {

/// In words and numbers, of each kind of nodes: the memory per device that is needed at least (with the `memory` of the cluster file of which so much
/// may be used), of what there is, and its largest term; the fewest nodes on which some configuration fits, up to 64 times as many; and the longest
/// rows that fit as it is. Closed forms of the longest row (row_needs.h) say where to look; what is said to fit, a plan was made for
/// (fitting_plan.h). Where none fits with the memory that the row needs, the least is found by planning, on up to 16 devices; on more the row's is
/// said. Where options.token_budget is given, and not only batch-all is tried, it is found so with that budget, and which budget would do with less
/// is said beside it. Where the longest row fits, and only the rows that `options` have beside it in a microbatch do not, or run.token_budget cuts it
/// where it would fit whole, and another option makes a plan fit: the largest microbatch that fits, and that option. Recomputation and sharded
/// weights, as options.savings has them, are among the configurations. Where only batch-all is tried, all of it is said of hybrid, temporal and
/// separate, and the text says so.
std::string advise(const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs,
                   const PlanOptions& options);

}  // namespace cotune
