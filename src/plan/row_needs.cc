#include "plan/row_needs.h"

#include <algorithm>
#include <set>
#include <utility>

#include "plan/budget_search.h"
#include "schedule/microbatch.h"

namespace cotune {
namespace {

constexpr int64_t most_times = 64;  // as many nodes as there are that are looked at

}  // namespace

RowNeeds::RowNeeds(const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs, const PlanOptions& options)
    : model_(model), cluster_(cluster), jobs_(jobs), options_(options) {
  for (const JobShape& job : jobs) longest_ = std::max(longest_, job.lengths.longest());
  is_short_ = longest_ < atom_tokens;
  longest_ = std::max(longest_, atom_tokens);
  savings_ = {{.recompute = options.recompute == Recompute::always}};
  for (const MemorySaving& each : options.savings) {
    if (!each.recompute || options.recompute != Recompute::never) savings_.push_back(each);
  }
}

std::optional<Need> RowNeeds::least(const NodeGroup& group) const {
  std::vector<Need> all = needs(cluster_, group);
  const auto least = std::ranges::min_element(all, {}, &Need::bytes);
  if (least == all.end()) return std::nullopt;
  return std::move(*least);
}

Reach RowNeeds::reach(const NodeGroup& group, int64_t most_chunk_tokens, int64_t most_row_chunk_tokens) const {
  Reach reach;
  for (const MemorySaving& saving : savings_) {
    ReplicaLimits limits = limits_with(saving);
    limits.most_chunk_tokens = most_chunk_tokens;
    limits.most_row_tokens = whole_chunk_steps(longest_);
    limits.most_row_chunk_tokens = most_row_chunk_tokens;
    for (const ReplicaCandidate& each : replica_candidates(model_, jobs_, cluster_, group, options_.dtype, limits)) {
      const Configuration& configuration = each.configuration;
      if (configuration.chunk_tokens < atom_tokens) continue;
      reach.row_tokens = std::max(reach.row_tokens, configuration.reach());
      if (configuration.chunk_tokens <= reach.tokens) continue;
      reach.tokens = configuration.chunk_tokens;
      reach.name = configuration.name() + (saving.recompute ? " with recomputation" : "");
    }
  }
  return reach;
}

std::optional<RowNeeds::OnNodes> RowNeeds::fewest_devices(const NodeGroup& group, const std::function<bool(const OnNodes&)>& holds) const {
  std::set<std::pair<std::string, int64_t>> refused;
  const auto fewest_on = [&](int64_t nodes) -> std::optional<OnNodes> {
    NodeGroup more = group;
    more.count = nodes;
    std::vector<OnNodes> all;
    for (Need& each : needs(with_network(cluster_, group), more)) {
      if (each.bytes() > group.device.usable_bytes() || refused.contains({each.name(), each.chunk_tokens})) continue;
      const int64_t devices = each.devices();
      if (devices > group.count * group.devices) {
        all.push_back({std::move(each), (devices + group.devices - 1) / group.devices, devices});
      } else {
        all.push_back({std::move(each), nodes, nodes * group.devices});
      }
    }
    std::ranges::stable_sort(all, {}, &OnNodes::devices);
    for (OnNodes& each : all) {
      if (holds(each)) return std::move(each);
      refused.emplace(each.need.name(), each.need.chunk_tokens);
    }
    return std::nullopt;
  };
  for (int64_t nodes = 2 * group.count; nodes <= most_times * group.count; nodes *= 2) {
    const std::optional<OnNodes> fitting = fewest_on(nodes);
    if (!fitting) continue;
    const int64_t least = nodes / 2 + 1, step = std::max<int64_t>(1, (nodes - least + 15) / 16);
    for (int64_t fewer = least; fewer < nodes; fewer += step) {
      const std::optional<OnNodes> found = fewest_on(fewer);
      if (found && found->devices < fitting->devices) return found;
    }
    return fitting;
  }
  return std::nullopt;
}

/// Tokens of the microbatches that the longest row is cut into: the smallest, and all of it. The second may take less, for a chain keeps
/// gradients of keys and values.
std::vector<int64_t> RowNeeds::row_chunks() const {
  const int64_t least = whole_chunk_steps(least_budget(options_)), whole = whole_chunk_steps(longest_);
  return least < whole ? std::vector{least, whole} : std::vector{least};
}

std::vector<Need> RowNeeds::needs(const ClusterSpec& cluster, const NodeGroup& group) const {
  NodeGroup roomy = group;
  roomy.device.memory_bytes = int64_t{1} << 60;
  std::vector<Need> all;
  for (const MemorySaving& saving : savings_) {
    for (const int64_t tokens : row_chunks()) {
      ReplicaLimits limits = limits_with(saving);
      limits.most_chunk_tokens = tokens;
      limits.most_row_tokens = whole_chunk_steps(longest_);
      for (ReplicaCandidate& each : replica_candidates(model_, jobs_, cluster, roomy, options_.dtype, limits)) {
        all.push_back({std::move(each), saving.recompute, tokens});
      }
    }
  }
  return all;
}

ReplicaLimits RowNeeds::limits_with(const MemorySaving& saving) const {
  ReplicaLimits limits = options_.replicas;
  limits.recompute = saving.recompute;
  limits.most_shards = saving.most_shards;
  return limits;
}

std::string assumed_network(const ClusterSpec& cluster, const NodeGroup& group) {
  if (cluster.network.bandwidth > 0) return "";
  return group.device.name == "cpu" ? "ethernet-10" : "infiniband-200";
}

ClusterSpec with_network(ClusterSpec cluster, const NodeGroup& group) {
  const std::string assumed = assumed_network(cluster, group);
  if (!assumed.empty()) cluster.network = link_preset(assumed);
  return cluster;
}

}  // namespace cotune
