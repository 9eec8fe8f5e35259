#include "plan/fitting_plan.h"

#include <algorithm>
#include <utility>

#include "base/least_bytes.h"
#include "plan/memory_savings.h"
#include "plan/nodes_planner.h"

namespace cotune {
namespace {

FittingPlan summary_of(const Plan& plan, const NodeGroup& group) {
  FittingPlan result{.replicas = replicas_text(plan), .limit_bytes = group.device.usable_bytes()};
  if (plan.recompute == Recompute::always) result.replicas += " with recomputation";
  for (const PlannedReplica& replica : plan.replicas) {
    result.devices += replica.devices();
    for (const PlannedStage& stage : replica.stages) {
      if (stage.memory.total() > result.memory.total()) result.memory = stage.memory;
    }
  }
  return result;
}

/// Nothing where none fits with this saving of memory.
std::optional<Plan> plan_with(const FittingProblem& problem, const NodeGroup& group, const PlanOptions& options, const MemorySaving& saving,
                              bool is_plain) {
  NodesPlanner planner(problem.model, problem.cluster, group, problem.jobs, options, saving);
  const TriedPolicies policies = tried_policies(options, !is_plain);
  for (const System system : options.deployments) {
    if (is_sequential(system)) continue;
    for (const Sharing each : policies.sharing) {
      const bool is_last = each == policies.sharing.back();
      for (Alternative& tried : planner.plan(system, {each}, policies.orders, is_last ? policies.orders_for_few : std::vector<PipelineOrder>())) {
        if (tried.fits()) return std::move(tried.plans.front());
      }
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<FittingPlan> plan_that_fits(const FittingProblem& problem, const NodeGroup& group) {
  FittingProblem here = problem;
  here.cluster.nodes = {group};
  const NodeGroup& nodes = here.cluster.nodes.front();
  PlanOptions options = problem.options;
  for (const bool has_all_sizes : {false, true}) {
    if (options.replicas.has_all_sizes && !has_all_sizes) continue;
    options.replicas.has_all_sizes = has_all_sizes;
    const std::vector<MemorySaving> savings = memory_savings(options, nodes);
    for (const MemorySaving& saving : savings) {
      if (const std::optional<Plan> found = plan_with(here, nodes, options, saving, saving == savings.front())) return summary_of(*found, nodes);
    }
  }
  return std::nullopt;
}

std::optional<FittingPlan> plan_with_memory(const FittingProblem& problem, NodeGroup group, int64_t bytes) {
  group.device.memory_bytes = bytes;
  group.device.usable_memory = 1;
  return plan_that_fits(problem, group);
}

std::optional<FittingPlan> plan_in_least_memory(const FittingProblem& problem, const NodeGroup& group) {
  std::optional<FittingPlan> best;
  least_bytes(std::max<int64_t>(1, group.device.usable_bytes()), [&](int64_t bytes) {
    std::optional<FittingPlan> found = plan_with_memory(problem, group, bytes);
    const bool does_fit = found.has_value();
    if (does_fit) best = std::move(found);
    return does_fit;
  });
  return best;
}

}  // namespace cotune
