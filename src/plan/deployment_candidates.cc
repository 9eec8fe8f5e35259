#include "plan/deployment_candidates.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/never.h"
#include "plan/deployment/replica_counts.h"
#include "plan/deployment/system_deployments.h"
#include "plan/placement.h"

namespace cotune {
namespace {

/// Vectors of replica counts, at most, that are all looked at, also with configurations that suit no length best: few rows on few devices go
/// by how many replicas there are for them.
constexpr int64_t few_plans = 32;

/// The linear model's seconds for fewer replicas than it was fitted to: by so much at most they are more than the estimate.
constexpr double most_above_estimate = 1.5;

bool are_few(const std::vector<BucketCosts>& costs, int64_t devices) {
  std::vector<int64_t> sizes;
  for (const BucketCosts& each : costs) sizes.push_back(each.devices);
  return count_plans(sizes, devices) <= few_plans;
}

/// Numbers of nodes below `count` that are tried by themselves: one less, and halves of all down to one.
std::vector<int64_t> fewer_nodes(int64_t count) {
  std::vector<int64_t> tried;
  if (count > 2) tried.push_back(count - 1);
  for (int64_t nodes = count / 2; nodes > 0; nodes /= 2) {
    if (nodes != count - 1 || count == 2) tried.push_back(nodes);
  }
  return tried;
}

/// Whether it saves memory as it should: with sharded weights in some replicas, where that is asked for.
bool is_wanted(const NodeReplicas& nodes, const std::vector<int64_t>& replicas) {
  if (nodes.saving().most_shards <= 1) return true;
  for (size_t i = 0; i < replicas.size(); ++i) {
    if (replicas[i] > 0 && nodes.configurations()[i].shards > 1) return true;
  }
  return false;
}

/// Unless one of `found` has these replicas, or they are none that are wanted.
void add(std::vector<EstimatedDeployment>& found, NodeReplicas& nodes, const std::vector<int64_t>& replicas) {
  const bool is_known = std::ranges::any_of(found, [&](const EstimatedDeployment& other) { return other.replicas == replicas; });
  if (!is_known && is_wanted(nodes, replicas) && nodes.holds_all_rows(replicas)) found.push_back(nodes.estimate(replicas));
}

/// Of those that fit.
double least_estimated_s(const std::vector<EstimatedDeployment>& found) {
  double least_s = never;
  for (const EstimatedDeployment& each : found) {
    if (each.constraint.empty()) least_s = std::min(least_s, each.estimated_s);
  }
  return least_s;
}

void sort(std::vector<EstimatedDeployment>& found) {
  std::ranges::stable_sort(found, {}, &EstimatedDeployment::fitting_s);
}

/// The replicas for which there is a place on the nodes.
std::vector<int64_t> placed(const NodeReplicas& nodes, std::vector<int64_t> replicas) {
  std::vector<int64_t> sizes;
  std::vector<size_t> configuration;
  for (size_t i = 0; i < replicas.size(); ++i) {
    sizes.insert(sizes.end(), static_cast<size_t>(replicas[i]), nodes.configurations()[i].devices());
    configuration.insert(configuration.end(), static_cast<size_t>(replicas[i]), i);
  }
  const std::vector<std::vector<PlannedDevice>> places = place_what_fits(sizes, nodes.group());
  for (size_t r = 0; r < places.size(); ++r) replicas[configuration[r]] -= places[r].empty() ? 1 : 0;
  return replicas;
}

/// Those that get rows of the typical step.
std::vector<int64_t> with_rows(const NodeReplicas& nodes, const std::vector<int64_t>& replicas) {
  std::vector<int64_t> used(replicas.size(), 0);
  for (const ReplicaRows& each : nodes.dispatched(replicas).replicas) used[each.configuration] += each.seconds > 0 ? 1 : 0;
  for (size_t i = 0; i < used.size(); ++i) {
    const int64_t copies = nodes.costs()[i].copies;
    used[i] = (used[i] + copies - 1) / copies;
  }
  return used;
}

/// By the linear model and the exchange of gradients, the best number of like replicas below the most.
std::optional<int64_t> best_fewer(NodeReplicas& nodes, size_t configuration, int64_t most) {
  const BucketCosts& costs = nodes.costs()[configuration];
  const std::vector<int64_t>& sequences = nodes.buckets().sequences;
  double work = 0, longest = 0;
  for (size_t j = 0; j < sequences.size(); ++j) {
    if (sequences[j] == 0) continue;
    work += static_cast<double>(sequences[j]) * costs.seconds[j];
    longest = std::max(longest, costs.seconds[j] + costs.fill);
  }
  std::vector<int64_t> replicas(nodes.configurations().size(), 0);
  std::optional<int64_t> best;
  double least = 0;
  for (int64_t count = most - 1; count > 0; --count) {
    replicas[configuration] = count;
    const double exchange = nodes.exchange_s(replicas), copies = static_cast<double>(count * costs.copies);
    if (best && std::max(longest, work / copies) + exchange >= least) continue;
    const double seconds = nodes.dispatched(replicas).makespan + exchange;
    if (!best || seconds < least) best = count, least = seconds;
  }
  return best;
}

/// The configurations that unlike replicas are made of, by their places among all: those that suit a length best, and that of the best like
/// replicas, which decides how soon few long rows are through. The others are told why not.
std::vector<size_t> proposed_places(NodeReplicas& nodes, const std::vector<EstimatedDeployment>& alike) {
  const std::vector<Configuration>& all = nodes.configurations();
  const std::vector<Configuration> proposed =
      are_few(nodes.costs(), nodes.device_count()) ? all : propose_configurations(all, nodes.buckets().tokens);
  std::vector<size_t> places;
  for (const Configuration& each : proposed) {
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].name() == each.name()) places.push_back(i);
    }
  }
  const auto is_used = [](int64_t count) { return count > 0; };
  if (!alike.empty()) {
    const auto best = static_cast<size_t>(std::ranges::find_if(alike.front().replicas, is_used) - alike.front().replicas.begin());
    if (std::ranges::count(places, best) == 0) places.insert(std::ranges::lower_bound(places, best), best);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::ranges::count(places, i) == 0) nodes.reject(i, "no length at which it gives most tokens per device; for like replicas only");
  }
  return places;
}

}  // namespace

std::vector<EstimatedDeployment> like_deployments(NodeReplicas& nodes, const PlanOptions& options) {
  std::vector<EstimatedDeployment> found;
  std::vector<std::vector<int64_t>> fewer;
  for (std::vector<int64_t>& replicas : like_replicas(nodes.costs(), nodes.buckets().sequences, nodes.device_count())) {
    const auto i = static_cast<size_t>(std::ranges::find_if(replicas, [](int64_t count) { return count > 0; }) - replicas.begin());
    const int64_t most = most_replicas(nodes.configurations()[i].devices(), nodes.group());
    replicas[i] = most;
    add(found, nodes, replicas);
    if (!options.may_idle) continue;
    if (const std::optional<int64_t> best = best_fewer(nodes, i, most)) {
      replicas[i] = *best;
      fewer.push_back(replicas);
    }
    replicas[i] = 1;  // which exchanges nothing
    fewer.push_back(replicas);
  }
  const double worth_s = most_above_estimate * least_estimated_s(found);
  for (const std::vector<int64_t>& replicas : fewer) {
    if (nodes.holds_all_rows(replicas) && nodes.dispatched(replicas).makespan + nodes.exchange_s(replicas) <= worth_s) add(found, nodes, replicas);
  }
  sort(found);
  return found;
}

UnlikeDeployments unlike_deployments(NodeReplicas& nodes, const PlanOptions& options) {
  // LB-33: unlike replicas never lose against like ones.
  UnlikeDeployments result{.found = like_deployments(nodes, options), .closed_form = {}};
  const std::vector<size_t> places = proposed_places(nodes, result.found);
  std::vector<BucketCosts> costs;
  for (const size_t i : places) costs.push_back(nodes.costs()[i]);
  const auto add_placed = [&](const std::vector<int64_t>& of_proposed) {
    std::vector<int64_t> replicas(nodes.configurations().size(), 0);
    for (size_t i = 0; i < places.size(); ++i) replicas[places[i]] = of_proposed[i];
    replicas = placed(nodes, std::move(replicas));
    add(result.found, nodes, replicas);
    // The others would take part in the exchange and in nothing else.
    if (options.may_idle && nodes.holds_all_rows(replicas)) add(result.found, nodes, with_rows(nodes, replicas));
  };
  const std::vector<int64_t>& sequences = nodes.buckets().sequences;
  const auto plan_on = [&](int64_t devices) {
    Deployment planned = plan_deployment(costs, sequences, devices, options.deployment);
    if (!planned.empty()) add_placed(planned.replicas);
    for (const ConsideredPlan& each : planned.runners_up) add_placed(each.replicas);
    return planned;
  };
  result.closed_form = plan_on(nodes.device_count());
  // What fewer nodes save of the exchange may be more than what their devices would compute.
  for (const int64_t count : options.may_idle ? fewer_nodes(nodes.group().count) : std::vector<int64_t>()) {
    const int64_t devices = count * nodes.group().devices;
    if (least_seconds(costs, sequences, devices) < least_estimated_s(result.found)) plan_on(devices);
  }
  sort(result.found);
  return result;
}

}  // namespace cotune
