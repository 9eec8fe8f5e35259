#include "plan/placement.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace cotune {

std::vector<std::vector<PlannedDevice>> place_what_fits(std::span<const int64_t> devices, const NodeGroup& group) {
  std::vector<size_t> largest_first(devices.size());
  std::iota(largest_first.begin(), largest_first.end(), size_t{0});
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [&](size_t a, size_t b) { return devices[a] > devices[b]; });
  std::vector<int64_t> used(static_cast<size_t>(group.count), 0);
  std::vector<std::vector<PlannedDevice>> placed(devices.size());
  for (const size_t replica : largest_first) {
    std::vector<int64_t> used_with = used;
    std::vector<PlannedDevice>& own = placed[replica];
    int64_t left = devices[replica];
    for (size_t node = 0; node < used.size() && left > 0; ++node) {
      const int64_t wanted = std::min(left, group.devices);
      if (used_with[node] + wanted > group.devices) continue;
      for (int64_t i = 0; i < wanted; ++i) own.push_back({group.name, static_cast<int64_t>(node), used_with[node]++});
      left -= wanted;
    }
    if (left > 0) {
      own.clear();
    } else {
      used = std::move(used_with);
    }
  }
  return placed;
}

std::optional<std::vector<std::vector<PlannedDevice>>> place_replicas(std::span<const int64_t> devices,
                                                                      const NodeGroup& group) {
  std::vector<std::vector<PlannedDevice>> placed = place_what_fits(devices, group);
  for (const std::vector<PlannedDevice>& each : placed) {
    if (each.empty()) return std::nullopt;
  }
  return placed;
}

int64_t most_replicas(int64_t devices, const NodeGroup& group) {
  if (devices <= group.devices) return group.count * (group.devices / devices);
  return group.count / ((devices + group.devices - 1) / group.devices);
}

const NodeGroup& nodes_called(const ClusterSpec& cluster, const std::string& name) {
  const auto found = std::find_if(cluster.nodes.begin(), cluster.nodes.end(),
                                  [&](const NodeGroup& group) { return group.name == name; });
  if (found == cluster.nodes.end())
    throw_user_error("the cluster has no nodes called `{}`, which the plan uses", name);
  return *found;
}

const LinkSpec& link_between(const ClusterSpec& cluster, const PlannedDevice& a, const PlannedDevice& b) {
  const bool same_node = a.nodes == b.nodes && a.node == b.node;
  return same_node ? nodes_called(cluster, a.nodes).link : cluster.network;
}

PipelineCluster links_between_stages(const ClusterSpec& cluster, const std::vector<PlannedStage>& stages) {
  PipelineCluster links;
  for (size_t s = 0; s < stages.size(); ++s) {
    const size_t next = (s + 1) % stages.size();
    if (next == s) continue;
    const LinkSpec& link = link_between(cluster, stages[s].devices.front(), stages[next].devices.front());
    const auto from = static_cast<int32_t>(s), to = static_cast<int32_t>(next);
    links.links[{from, to}] =
        links.links[{to, from}] = {.latency_s = link.latency, .bytes_per_s = link.bandwidth};
  }
  return links;
}

}  // namespace cotune
