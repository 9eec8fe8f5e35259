#include "plan/planning_json.h"

#include "plan/plan_json.h"

namespace cotune {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// Where 0 stands for nothing known.
template <typename Number>
OrderedJson known(Number value) {
  return value > 0 ? OrderedJson(value) : OrderedJson(nullptr);
}

/// Where jobs in turn have no plan for one of them, what is known of the others is the memory that is needed at least.
OrderedJson predicted_of(const Alternative& alternative) {
  const PredictedStep& step = alternative.predicted;
  if (step.fullest_bytes == 0) return nullptr;
  OrderedJson json = to_json(step);
  if (step.seconds > 0) return json;
  for (const auto& [key, value] : json.items()) value = key == "fullest_bytes" ? value : OrderedJson(nullptr);
  return json;
}

OrderedJson to_json(const NodeChange& change, const PredictedStep& before) {
  return {{"nodes", change.nodes},
          {"from", change.from},
          {"to", change.to},
          {"replicas", change.replicas},
          {"predicted", change.fits() ? to_json(change.predicted) : OrderedJson(nullptr)},
          {"speed_up", known(change.speed_up(before))},
          {"saves_memory", change.saves_memory},
          {"assumed_network", change.assumed_network},
          {"constraint", change.constraint}};
}

OrderedJson to_json(const Overflow& overflow) {
  return overflow.bytes > 0 ? OrderedJson{{"term", overflow.term}, {"bytes", overflow.bytes}} : OrderedJson(nullptr);
}

}  // namespace

nlohmann::ordered_json to_json(const ConsideredGrouping& grouping) {
  return {{"replica", grouping.replica},
          {"hybrid_tasks", grouping.hybrid_tasks},
          {"buckets", grouping.buckets},
          {"least_microbatches", grouping.least_microbatches},
          {"seconds", grouping.seconds},
          {"is_bound", grouping.is_bound},
          {"fullest_bytes", grouping.fullest_bytes},
          {"overflow", to_json(grouping.overflow)},
          {"rejected_for", grouping.rejected_for}};
}

nlohmann::ordered_json to_json(const PlanningResult& result, const std::vector<NodeChange>& changes) {
  OrderedJson node_changes = OrderedJson::array();
  for (const NodeChange& each : changes) node_changes.push_back(to_json(each, result.plan()->predicted));
  OrderedJson alternatives = OrderedJson::array(), configurations = OrderedJson::array(), deployments = OrderedJson::array();
  for (const Alternative& each : result.alternatives) {
    OrderedJson plans = OrderedJson::array();
    for (const Plan& plan : each.plans) plans.push_back(replicas_text(plan));
    alternatives.push_back({{"nodes", each.nodes},
                            {"deployment", name_of(each.deployment)},
                            {"sharing", name_of(each.sharing)},
                            {"order", name_of(each.order)},
                            {"recompute", each.recompute},
                            {"shards_weights", each.shards_weights},
                            {"replicas", std::move(plans)},
                            {"fits", each.fits()},
                            {"predicted", predicted_of(each)},
                            {"is_bound", each.is_bound},
                            {"overflow", to_json(each.overflow)},
                            {"rejected_for", each.rejected_for}});
  }
  for (const ConsideredConfiguration& each : result.configurations) {
    configurations.push_back({{"nodes", each.nodes},
                              {"tensor_parallel", each.tensor_parallel},
                              {"sequence_parallel", each.is_sequence_parallel},
                              {"pipeline_stages", each.pipeline_stages},
                              {"shards", each.shards},
                              {"recompute", each.recompute},
                              {"chunk_tokens", each.chunk_tokens},
                              {"longest_row", each.longest_row},
                              {"tokens_per_device_s", known(each.tokens_per_device_s)},
                              {"memory_bytes", known(each.memory.total())},
                              {"estimated_chunk_s", known(each.chunk_s)},
                              {"overflow", to_json(each.overflow)},
                              {"rejected_for", each.rejected_for}});
  }
  for (const ConsideredDeployment& each : result.deployments) {
    deployments.push_back({{"nodes", each.nodes},
                           {"deployment", name_of(each.system)},
                           {"recompute", each.recompute},
                           {"replicas", each.replicas},
                           {"dispatch_s", each.dispatch_s},
                           {"estimated_s", each.estimated_s},
                           {"estimated_bytes", each.estimated_bytes},
                           {"estimate_constraint", each.estimate_constraint},
                           {"simulated_s", known(each.simulated_s)},
                           {"simulated_bytes", known(each.simulated_bytes)},
                           {"overflow", to_json(each.overflow)},
                           {"rejected_for", each.rejected_for}});
  }
  OrderedJson uneven = OrderedJson::array();
  if (const Plan* plan = result.plan()) {
    for (size_t r = 0; r < plan->replicas.size(); ++r) {
      for (const size_t bucket : plan->replicas[r].uneven_buckets()) {
        uneven.push_back({{"replica", r}, {"bucket", bucket}, {"backward_ratio", plan->replicas[r].backward_ratio[bucket]}});
      }
    }
  }
  OrderedJson groupings = OrderedJson::array();
  for (const ConsideredGrouping& each : result.groupings) groupings.push_back(to_json(each));
  const Deployment& lobra = result.lobra;
  return {{"plan", result.plan() != nullptr ? to_json(*result.plan()) : OrderedJson(nullptr)},
          {"alternatives", std::move(alternatives)},
          {"configurations", std::move(configurations)},
          {"deployments", std::move(deployments)},
          {"enumerated",
           {{"plans", lobra.enumerated},
            {"unable", lobra.unable},
            {"bounded", lobra.bounded},
            {"solved", lobra.solved},
            {"open", lobra.open},
            {"lower_bound_s", known(lobra.lower_bound)}}},
          {"groupings", std::move(groupings)},
          {"uneven_buckets", std::move(uneven)},
          {"node_changes", std::move(node_changes)},
          {"advice", result.advice}};
}

}  // namespace cotune
