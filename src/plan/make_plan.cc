#include "plan/make_plan.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/parallel_for.h"
#include "plan/memory_savings.h"
#include "plan/nodes_planner.h"
#include "plan/placement.h"
#include "plan/plan_advice.h"
#include "plan/replica_planner.h"

namespace cotune {
namespace {

/// The job as the only one.
JobShape alone(JobShape job) {
  for (AdapterShape& each : job.adapters) each.job = 0;
  return job;
}

/// By system, its alternatives.
using AlternativesOf = std::map<System, std::vector<Alternative>>;

/// Those of the systems that there are.
AlternativesOf plan_each(NodesPlanner& planner, const std::vector<System>& systems, const TriedPolicies& tried) {
  AlternativesOf found;
  for (const System system : systems) found[system] = planner.plan(system, tried.sharing, tried.orders, tried.orders_for_few);
  for (const auto& [unlike, alike] : {std::pair(System::lobra, System::task_fused), std::pair(System::lobra_sequential, System::task_sequential)}) {
    if (found.contains(unlike) && found.contains(alike)) planner.take_like(unlike, found[unlike], found[alike]);
  }
  return found;
}

/// One job after the other, each with the rows that it has in the typical step of all: a sum over jobs for every order.
AlternativesOf plan_in_turn(const ModelConfig& model, const ClusterSpec& cluster,
                            const NodeGroup& group, const std::vector<JobShape>& jobs,
                            const PlanOptions& options, const std::vector<System>& systems) {
  const std::vector<StepRow> step = typical_step(jobs);
  std::vector<AlternativesOf> of_jobs(jobs.size());
  parallel_for(jobs.size(), options.threads, [&](size_t j) {
    const std::vector<JobShape> only = {alone(jobs[j])};
    NodesPlanner planner(model, cluster, group, only, options, {.recompute = options.recompute == Recompute::always},
                         rows_of_job(step, static_cast<int32_t>(j)));
    of_jobs[j] = plan_each(planner, systems, {{Sharing::separate}, options.orders, options.orders_for_few});
  });
  std::vector<std::string> names;
  for (const JobShape& job : jobs) names.push_back(job.name);
  AlternativesOf sums;
  for (const System system : systems) {
    std::vector<std::vector<Alternative>> of_system;
    for (AlternativesOf& each : of_jobs) of_system.push_back(std::move(each.at(system)));
    sums[system] = sums_in_turn(of_system, names, group.count * group.devices);
  }
  return sums;
}

/// All alternatives on one kind of nodes with one saving of memory.
PlanningResult plan_with_saving(const ModelConfig& model, const ClusterSpec& cluster, const NodeGroup& group, const std::vector<JobShape>& jobs,
                                const PlanOptions& options, const MemorySaving& saving, bool is_plain) {
  PlanningResult result;
  NodesPlanner planner(model, cluster, group, jobs, options, saving);
  std::vector<System> in_turn, together;
  for (const System system : options.deployments) (is_sequential(system) ? in_turn : together).push_back(system);
  AlternativesOf found = plan_each(planner, together, tried_policies(options, !is_plain));
  if (is_plain && !in_turn.empty()) found.merge(plan_in_turn(model, cluster, group, jobs, options, in_turn));
  for (const System system : options.deployments) {
    std::vector<Alternative>& of_system = found[system];
    std::move(of_system.begin(), of_system.end(), std::back_inserter(result.alternatives));
  }
  const std::vector<ConsideredConfiguration>& configurations = planner.considered();
  std::copy_if(configurations.begin(), configurations.end(), std::back_inserter(result.configurations),
               [&](const ConsideredConfiguration& each) { return is_plain || saving.most_shards <= 1 || each.shards > 1; });
  result.deployments = planner.considered_deployments();
  result.lobra = planner.lobra();
  return result;
}

void append(PlanningResult& all, PlanningResult&& more) {
  const auto move = [](auto& to, auto& from) { std::move(from.begin(), from.end(), std::back_inserter(to)); };
  move(all.configurations, more.configurations);
  move(all.deployments, more.deployments);
  move(all.alternatives, more.alternatives);
}

/// All alternatives on one kind of nodes.
PlanningResult plan_on_nodes(const ModelConfig& model, const ClusterSpec& cluster, const NodeGroup& group,
                             const std::vector<JobShape>& jobs, const PlanOptions& options) {
  const std::vector<MemorySaving> savings = memory_savings(options, group);
  std::vector<PlanningResult> of_savings(savings.size());
  parallel_for(savings.size(), options.threads, [&](size_t s) {
    of_savings[s] = plan_with_saving(model, cluster, group, jobs, options, savings[s], s == 0);
  });
  PlanningResult result;
  result.lobra = of_savings.front().lobra;
  for (PlanningResult& each : of_savings) append(result, std::move(each));
  result.chosen = choose(result.alternatives);
  return result;
}

/// All alternatives on every kind of nodes.
PlanningResult plan_on_cluster(const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs, const PlanOptions& options) {
  PlanningResult result;
  double shortest = std::numeric_limits<double>::infinity();
  for (const NodeGroup& group : cluster.nodes) {
    PlanningResult here = plan_on_nodes(model, cluster, group, jobs, options);
    const double seconds = here.plan() != nullptr ? here.plan()->predicted.seconds : std::numeric_limits<double>::infinity();
    if (seconds < shortest || &group == &cluster.nodes.front()) result.lobra = here.lobra;
    shortest = std::min(shortest, seconds);
    append(result, std::move(here));
  }
  result.chosen = choose(result.alternatives);
  return result;
}

}  // namespace

std::vector<ConsideredGrouping> groupings_of(const Plan& plan, const ModelConfig& model, const ClusterSpec& cluster,
                                             const std::vector<JobShape>& jobs, const PlanOptions& options) {
  const NodeGroup& group = nodes_called(cluster, plan.replicas.front().stages.front().devices.front().nodes);
  ReplicaPlanner planner(model, cluster, group, jobs, options, plan.recompute == Recompute::always);
  std::map<std::tuple<int64_t, bool, int64_t, int64_t>, size_t> slowest;  // by shape
  for (size_t r = 0; r < plan.replicas.size(); ++r) {
    const PlannedReplica& replica = plan.replicas[r];
    if (replica.rows.empty()) continue;
    const auto [found, is_new] =
        slowest.try_emplace({replica.tensor_parallel, replica.is_sequence_parallel, replica.pipeline_stages(), replica.shards}, r);
    if (!is_new && replica.seconds > plan.replicas[found->second].seconds) found->second = r;
  }
  std::vector<ConsideredGrouping> groupings;
  for (const auto& [shape, r] : slowest) {
    for (ConsideredGrouping& each : planner.groupings(plan.replicas[r], plan.order)) {
      each.replica = r;
      groupings.push_back(std::move(each));
    }
  }
  return groupings;
}

PlanningResult make_plan(const ModelConfig& model, const ClusterSpec& cluster,
                         const std::vector<JobShape>& jobs, const PlanOptions& options) {
  COTUNE_CHECK(!jobs.empty() && !cluster.nodes.empty(), "{} jobs, {} kinds of nodes", jobs.size(),
               cluster.nodes.size());
  PlanningResult result = plan_on_cluster(model, cluster, jobs, options);
  if (!result.chosen && !options.replicas.has_all_sizes) {
    PlanOptions of_all_sizes = options;
    of_all_sizes.replicas.has_all_sizes = true;
    PlanningResult more = plan_on_cluster(model, cluster, jobs, of_all_sizes);
    if (more.chosen) result = std::move(more);
  }
  judge(result.deployments, result.chosen ? &result.alternatives[*result.chosen] : nullptr);
  if (!result.chosen) {
    result.advice = advise(model, cluster, jobs, options);
  } else if (result.plan()->sharing == Sharing::hybrid) {
    result.groupings = groupings_of(*result.plan(), model, cluster, jobs, options);
  }
  return result;
}

}  // namespace cotune
