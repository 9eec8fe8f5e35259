#include "plan/cost/replica_stages.h"

#include <algorithm>

#include "plan/cost/stage_memory.h"
#include "schedule/pipeline/partition.h"

namespace cotune {

std::vector<StageShape> balanced_stages(const ModelConfig& model, const std::vector<JobShape>& jobs,
                                        int64_t stages, int64_t tensor_parallel, int64_t chunk_tokens,
                                        StagePrices& prices, int64_t memory_limit,
                                        const WeightSharding& sharding, bool is_sequence_parallel) {
  std::vector<StageShape> even = even_stages(model, stages, tensor_parallel, is_sequence_parallel);
  if (stages == 1) return even;
  std::vector<AdapterShape> adapters;
  std::vector<int32_t> all_jobs;
  std::vector<double> shares;
  double tokens = 0;
  int64_t moment_count = 0;
  for (const JobShape& job : jobs) {
    all_jobs.push_back(static_cast<int32_t>(all_jobs.size()));
    adapters.insert(adapters.end(), job.adapters.begin(), job.adapters.end());
    tokens += shares.emplace_back(static_cast<double>(job.batch_size) * job.lengths.mean());
    moment_count = std::max(moment_count, job.moment_count);
  }
  for (double& share : shares) share /= tokens;
  const MicrobatchCounts counts = even_microbatch(1, chunk_tokens, shares);
  const size_t everything = prices.jobs_number(all_jobs);
  const auto of = [&](const StageShape& stage) {
    return prices.at(stage, everything).seconds(counts).total();
  };
  std::vector<double> layers;
  for (int64_t layer = 0; layer < model.layer_count; ++layer) {
    layers.push_back(of({layer, layer + 1, layer == 0, layer + 1 == model.layer_count, tensor_parallel, is_sequence_parallel}));
  }
  const std::vector<int64_t> cuts = partition_stages(layers, stages);
  std::vector<StageShape> cut;
  for (size_t s = 0; s < even.size(); ++s) {
    cut.push_back({cuts[s], cuts[s + 1], s == 0, s + 1 == even.size(), tensor_parallel, is_sequence_parallel});
  }
  double slowest_even = 0, slowest_cut = 0;
  for (size_t s = 0; s < even.size(); ++s) {
    slowest_even = std::max(slowest_even, of(even[s]));
    slowest_cut = std::max(slowest_cut, of(cut[s]));
    const PricedStage& priced = prices.at(cut[s], everything);
    StageMemory memory{.weights = frozen_bytes(model, cut[s], prices.machine()),
                       .adapters = adapter_bytes(model, cut[s], adapters, moment_count),
                       .activations = priced.kept_bytes(counts) * (stages - static_cast<int64_t>(s)),
                       .workspace = priced.workspace_bytes(counts)};
    memory = with_sharded_weights(memory, model, cut[s], sharding, prices.machine());
    if (memory.total() > memory_limit) return even;
  }
  return slowest_cut < slowest_even ? cut : even;
}

}  // namespace cotune
