#include "plan/deployment/configuration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace cotune {

std::string configuration_name(int64_t tensor_parallel, bool is_sequence_parallel, int64_t pipeline_stages, int64_t shards) {
  return fmt::format("<{}{},{}>{}", tensor_parallel, is_sequence_parallel ? "+seq" : "", pipeline_stages,
                     shards > 1 ? fmt::format("/{}", shards) : "");
}

std::string Configuration::name() const { return configuration_name(tensor_parallel, is_sequence_parallel, pipeline_stages, shards); }

double Configuration::rate(int64_t tokens) const {
  if (tokens <= 0 || tokens > reach()) return 0;
  const int64_t sequences = std::max<int64_t>(1, chunk_tokens / tokens);
  return static_cast<double>(shards * sequences * tokens) / (static_cast<double>(devices()) * chunk_seconds(sequences, tokens));
}

BucketCosts bucket_costs(const Configuration& configuration, std::span<const int64_t> bucket_tokens,
                         std::span<const double> row_tokens) {
  BucketCosts costs{.devices = configuration.devices(), .copies = configuration.shards, .seconds = {}};
  for (size_t j = 0; j < bucket_tokens.size() && bucket_tokens[j] <= configuration.reach(); ++j) {
    const int64_t tokens = row_tokens.empty() ? bucket_tokens[j] : std::llround(std::ceil(row_tokens[j]));
    const int64_t sequences = std::max<int64_t>(1, configuration.chunk_tokens / tokens);
    const int64_t chunks = (sequences * tokens + configuration.chunk_tokens - 1) / configuration.chunk_tokens;
    const double seconds = configuration.chunk_seconds(sequences, tokens);
    costs.seconds.push_back(seconds / static_cast<double>(sequences));
    costs.fill = std::max(costs.fill, static_cast<double>(configuration.pipeline_stages - 1) * seconds / static_cast<double>(chunks));
  }
  return costs;
}

std::vector<BucketCosts> bucket_costs(std::span<const Configuration> configurations, std::span<const int64_t> bucket_tokens,
                                      std::span<const double> row_tokens) {
  std::vector<BucketCosts> costs;
  for (const Configuration& each : configurations) costs.push_back(bucket_costs(each, bucket_tokens, row_tokens));
  return costs;
}

std::vector<Configuration> propose_configurations(std::span<const Configuration> candidates,
                                                  std::span<const int64_t> lengths) {
  std::set<int64_t> device_counts;
  for (const Configuration& candidate : candidates) device_counts.insert(candidate.devices());
  std::set<size_t> chosen;
  for (const int64_t devices : device_counts) {
    for (const int64_t length : lengths) {
      const Configuration* best = nullptr;
      double best_rate = 0;
      for (const Configuration& candidate : candidates) {
        if (candidate.devices() > devices) continue;
        const double rate = candidate.rate(length);
        if (rate <= 0) continue;
        const bool is_smaller = best != nullptr && rate == best_rate && candidate.devices() < best->devices();
        if (rate > best_rate || is_smaller) best = &candidate, best_rate = rate;
      }
      if (best != nullptr) chosen.insert(static_cast<size_t>(best - candidates.data()));
    }
  }
  std::vector<Configuration> proposed;
  for (const size_t index : chosen) proposed.push_back(candidates[index]);
  return proposed;
}

}  // namespace cotune
