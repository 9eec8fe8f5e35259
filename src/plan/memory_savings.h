/// Which savings of memory plans are made with.
#pragma once

#include <vector>

#include "plan/plan_options.h"
#include "plan/shapes/cluster.h"

namespace cotune {

/// On these nodes, the first of them none: recomputation only where plans may or need not have it, sharding only where there are copies.
std::vector<MemorySaving> memory_savings(const PlanOptions& options, const NodeGroup& group);

/// What plans that save memory are tried with.
Sharing sharing_to_save_with(const PlanOptions& options);

}  // namespace cotune
