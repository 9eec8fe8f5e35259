#include "schedule/pipeline/structured_template.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <span>

namespace cotune {

std::vector<int32_t> descending_launch_order(const PipelineWork& work) {
  const std::vector<PipelineUnit> units = units_of(work);
  struct Latency {
    double total_s = 0;
    int64_t count = 0;
  };
  using Batch = std::pair<int64_t, int32_t>;  // round, bucket
  std::map<Batch, Latency> latency;
  const auto batch_of = [&](int32_t unit) {
    const PipelineMicrobatch& microbatch =
        work.microbatches[static_cast<size_t>(units[static_cast<size_t>(unit)].first)];
    return Batch{microbatch.round, microbatch.hybrid_task};
  };
  for (const PipelineMicrobatch& microbatch : work.microbatches) {
    Latency& sum = latency[{microbatch.round, microbatch.hybrid_task}];
    for (const StageCost& cost : microbatch.cost) sum.total_s += cost.forward_s + cost.backward_s;
    sum.count += 1;
  }
  std::vector<int32_t> launch(units.size());
  std::iota(launch.begin(), launch.end(), 0);
  const auto mean_s = [&](const Batch& batch) {
    const Latency& sum = latency.at(batch);
    return sum.total_s / static_cast<double>(sum.count);
  };
  std::stable_sort(launch.begin(), launch.end(), [&](int32_t a, int32_t b) {
    const Batch x = batch_of(a);
    const Batch y = batch_of(b);
    if (x == y) return false;
    if (x.first != y.first) return x.first < y.first;
    const double difference = mean_s(x) - mean_s(y);
    return difference != 0 ? difference > 0 : x.second < y.second;
  });
  return launch;
}

ComputeOrder structured_template(const PipelineWork& work, const PipelineCluster& cluster,
                                 const TemplateLimits& limits) {
  return list_schedule(work, cluster,
                       {.launch_order = descending_launch_order(work),
                        .strict = true,
                        .in_flight_limit = limits.in_flight,
                        .kept_bytes_limit = limits.kept_bytes});
}

double template_makespan_lemma(std::span<const double> latencies, int64_t microbatches, int64_t stages) {
  const double sum = std::accumulate(latencies.begin(), latencies.end(), 0.0);
  const auto fill = static_cast<double>(stages - 1);
  return fill * (latencies.front() + latencies.back()) + 2 * static_cast<double>(microbatches) * sum;
}

double template_makespan_bound(std::span<const double> latencies, int64_t microbatches, int64_t stages) {
  const double total = std::accumulate(latencies.begin(), latencies.end(), 0.0);
  const auto fill = static_cast<double>(stages - 1);
  const auto count = static_cast<double>(microbatches);
  double until = 0;
  double best = 0;
  for (const double latency : latencies) {
    until += latency;
    best = std::max(best, fill * (latencies.front() + latency) + 2 * count * until + count * (total - until));
  }
  return best;
}

}  // namespace cotune
