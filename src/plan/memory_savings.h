/// Which savings of memory plans are made with, and under which policies and orders.
#pragma once

#include <vector>

#include "plan/plan_options.h"
#include "plan/shapes/cluster.h"

namespace cotune {

/// On these nodes, the first of them none: recomputation only where plans may or need not have it, sharding only where there are copies.
std::vector<MemorySaving> memory_savings(const PlanOptions& options, const NodeGroup& group);

struct TriedPolicies {
  std::vector<Sharing> sharing;
  std::vector<PipelineOrder> orders, orders_for_few;
};

/// What plans are tried with: those of the options; to save memory, hybrid (or the policy that is given) in the default order.
TriedPolicies tried_policies(const PlanOptions& options, bool is_to_save);

}  // namespace cotune
