#include "plan/plan_advice.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/quantity_text.h"
#include "schedule/microbatch.h"

namespace cotune {
namespace {

std::string largest_term(const StageMemory& memory) {
  const std::pair<int64_t, const char*> terms[] = {{memory.weights, "frozen weights"},
                                                   {memory.adapters, "adapters with gradients and moments"},
                                                   {memory.activations, "activations"},
                                                   {memory.workspace, "workspace"}};
  const auto most = std::max_element(std::begin(terms), std::end(terms));
  return fmt::format("{} of {}", bytes_text(most->first), most->second);
}

/// With memory without end, for chunks of `tokens` tokens.
std::vector<ReplicaCandidate> needs(const ModelConfig& model, const ClusterSpec& cluster,
                                    const NodeGroup& group, const std::vector<JobShape>& jobs,
                                    const std::string& dtype, ReplicaLimits limits, int64_t tokens) {
  NodeGroup roomy = group;
  roomy.device.memory_bytes = int64_t{1} << 60;
  limits.most_chunk_tokens = tokens;
  return replica_candidates(model, jobs, cluster, roomy, dtype, limits);
}

std::string advice_for(const ModelConfig& model, const ClusterSpec& cluster, const NodeGroup& group,
                       const std::vector<JobShape>& jobs, const std::string& dtype,
                       const ReplicaLimits& limits) {
  int64_t longest = atom_tokens;
  for (const JobShape& job : jobs) longest = std::max(longest, job.lengths.longest());
  const int64_t tokens = (longest + 63) / 64 * 64, limit = group.device.usable_bytes();
  std::string text;
  const std::vector<ReplicaCandidate> all = needs(model, cluster, group, jobs, dtype, limits, tokens);
  const auto least =
      std::min_element(all.begin(), all.end(), [](const ReplicaCandidate& a, const ReplicaCandidate& b) {
        return a.memory.total() < b.memory.total();
      });
  if (least != all.end()) {
    text += fmt::format(
        "  {}: rows of {} tokens need at least {} per device, as {}, {} of it; {} of its {} may be used.\n",
        group.name, longest, bytes_text(least->memory.total()), least->configuration.name(),
        largest_term(least->memory), bytes_text(limit), bytes_text(group.device.memory_bytes));
  }
  constexpr int64_t most_times = 64;
  for (int64_t times = 2; times <= most_times; times *= 2) {
    ClusterSpec larger = cluster;
    NodeGroup more = group;
    more.count *= times;
    if (larger.network.bandwidth <= 0)
      larger.network = group.link.bandwidth > 0 ? group.link : link_preset("infiniband-200");
    ReplicaLimits wider = limits;
    wider.most_devices *= times;
    const std::vector<ReplicaCandidate> candidates = needs(model, larger, more, jobs, dtype, wider, tokens);
    const ReplicaCandidate* fewest = nullptr;
    for (const ReplicaCandidate& each : candidates) {
      const bool fits = each.memory.total() <= limit;
      if (fits && (fewest == nullptr || each.configuration.devices() < fewest->configuration.devices()))
        fewest = &each;
    }
    if (fewest == nullptr) continue;
    text += fmt::format("  {}: {} devices would hold it as {} ({} nodes in place of {}), {} per device.\n",
                        group.name, fewest->configuration.devices(), fewest->configuration.name(),
                        (fewest->configuration.devices() + group.devices - 1) / group.devices, group.count,
                        bytes_text(fewest->memory.total()));
    break;
  }
  int64_t reach = 0;
  for (const ReplicaCandidate& each : replica_candidates(model, jobs, cluster, group, dtype, limits)) {
    reach = std::max(reach, each.configuration.chunk_tokens);
  }
  if (reach >= atom_tokens && reach < longest) {
    text +=
        fmt::format("  {}: as it is, rows of up to {} tokens fit (data.max_length).\n", group.name, reach);
  }
  return text;
}

}  // namespace

std::string advise(const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs,
                   const std::string& dtype, const ReplicaLimits& limits) {
  std::string text;
  for (const NodeGroup& group : cluster.nodes) text += advice_for(model, cluster, group, jobs, dtype, limits);
  return text;
}

}  // namespace cotune
