#include "plan/memory_savings.h"

#include <algorithm>

namespace cotune {

std::vector<MemorySaving> memory_savings(const PlanOptions& options, const NodeGroup& group) {
  const bool always = options.recompute == Recompute::always;
  std::vector<MemorySaving> savings = {{.recompute = always}};
  for (MemorySaving each : options.savings) {
    if (each.recompute && options.recompute == Recompute::never) continue;
    if (each.most_shards > 1 && group.count * group.devices < 2) continue;
    each.recompute = each.recompute || always;
    if (std::ranges::find(savings, each) == savings.end()) savings.push_back(each);
  }
  return savings;
}

TriedPolicies tried_policies(const PlanOptions& options, bool is_to_save) {
  if (!is_to_save) return {options.sharing, options.orders, options.orders_for_few};
  const bool has_hybrid = std::ranges::find(options.sharing, Sharing::hybrid) != options.sharing.end();
  return {{has_hybrid ? Sharing::hybrid : options.sharing.front()}, {PipelineOrder::automatic}, {}};
}

}  // namespace cotune
