#include "plan/fitting_plan.h"

#include <algorithm>
#include <utility>

#include "base/quantity_text.h"
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

std::optional<FittingPlan> plan_with_memory(const FittingProblem& problem, NodeGroup group, int64_t bytes) {
  group.device.memory_bytes = bytes;
  group.device.usable_memory = 1;
  return plan_that_fits(problem, group);
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

std::optional<FittingPlan> plan_in_least_memory(const FittingProblem& problem, const NodeGroup& group) {
  int64_t too_little = std::max<int64_t>(1, group.device.usable_bytes());
  std::optional<FittingPlan> best;
  for (int64_t bytes = bytes_rounded_up(2 * too_little); !best; bytes = bytes_rounded_up(2 * bytes)) {
    if (bytes / 1024 > group.device.usable_bytes()) return std::nullopt;
    best = plan_with_memory(problem, group, bytes);
    if (!best) too_little = bytes;
  }
  while (best->limit_bytes - too_little > shown_step(best->limit_bytes)) {
    const int64_t most = best->limit_bytes, middle = bytes_rounded_up(too_little + (most - too_little) / 2);
    const int64_t bytes = middle < most ? middle : bytes_rounded_up(most - shown_step(most));
    if (bytes >= most) break;
    std::optional<FittingPlan> found = plan_with_memory(problem, group, bytes);
    if (found) {
      best = std::move(found);
    } else {
      too_little = bytes;
    }
  }
  return best;
}

}  // namespace cotune
