#include "plan/node_changes.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/parallel_for.h"
#include "plan/row_needs.h"

namespace cotune {
namespace {

template <typename Value>
std::vector<Value> either(Value a, Value b) {
  return a == b ? std::vector<Value>{a} : std::vector<Value>{a, b};
}

/// What is worth trying again where the plan is known.
PlanOptions narrowed(PlanOptions options, const Plan& plan) {
  std::erase_if(options.deployments, is_sequential);
  if (options.sharing.size() > 1) options.sharing = either(Sharing::hybrid, plan.sharing);
  const bool is_for_few = std::ranges::count(options.orders_for_few, plan.order) > 0;
  options.orders = is_for_few ? std::vector<PipelineOrder>{PipelineOrder::automatic} : either(PipelineOrder::automatic, plan.order);
  return options;
}

}  // namespace

std::vector<NodeChange> node_changes(const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs,
                                     const PlanOptions& options, const PlanningResult& result) {
  if (result.plan() == nullptr) return {};
  const PlanOptions again = narrowed(options, *result.plan());
  const Alternative& taken = result.alternatives[*result.chosen];
  const bool saves_memory = taken.recompute || taken.shards_weights;
  const std::string& kind = result.plan()->replicas.front().stages.front().devices.front().nodes;
  const auto changed_by = [&](int64_t more) -> std::optional<NodeChange> {
    ClusterSpec changed = cluster;
    // Only this kind is planned for: another that is faster now would say nothing of its nodes.
    std::erase_if(changed.nodes, [&](const NodeGroup& group) { return group.name != kind; });
    NodeGroup& group = changed.nodes.front();
    NodeChange change{.nodes = kind, .from = group.count, .to = group.count + more};
    if (change.to < 1) return std::nullopt;
    group.count = change.to;
    if (change.to > 1) {
      change.assumed_network = assumed_network(changed, group);
      changed = with_network(changed, group);
    }
    PlanOptions plain = again;
    if (!saves_memory) plain.savings.clear();
    PlanningResult planned = make_plan(model, changed, jobs, plain);
    if (!planned.chosen && !saves_memory) planned = make_plan(model, changed, jobs, again);
    if (const Plan* plan = planned.plan()) {
      change.replicas = replicas_text(*plan);
      change.predicted = plan->predicted;
      const Alternative& chosen = planned.alternatives[*planned.chosen];
      change.saves_memory = chosen.recompute || chosen.shards_weights;
    } else {
      change.constraint = planned.alternatives.front().constraint;
    }
    return change;
  };
  const std::array<int64_t, 2> more = {1, -1};
  std::array<std::optional<NodeChange>, 2> found;
  parallel_for(more.size(), options.threads, [&](size_t i) { found[i] = changed_by(more[i]); });
  std::vector<NodeChange> changes;
  for (std::optional<NodeChange>& each : found) {
    if (each) changes.push_back(*std::move(each));
  }
  return changes;
}

}  // namespace cotune
