#include "plan/cost/weight_sharding.h"

#include <gtest/gtest.h>

#include "plan/cost/replica_costs.h"

namespace cotune {
namespace {

TEST(WeightSharding, GathersEveryLayerTwiceAndHidesWhatItMay) {
  const LinkSpec link{.bandwidth = 100, .latency = 0.5};
  EXPECT_EQ(all_gather_seconds(400, 4, link), 3 + 1.5);  // three quarters of 400 bytes at 100 a second, three hops
  EXPECT_EQ(all_gather_seconds(400, 1, link), 0);
  EXPECT_EQ(seconds_with_gathering(10, 4, 0), 14);
  EXPECT_EQ(seconds_with_gathering(10, 4, 0.5), 12);
  EXPECT_EQ(seconds_with_gathering(10, 4, 1), 10);
  EXPECT_EQ(seconds_with_gathering(3, 4, 1), 4) << "no more hides than is computed";
  // Llama-2-7B: a layer has 4·4096² + 3·4096·11008 + 2·4096 values, embedding and head 32000·4096 each, one norm with the head.
  const ModelConfig model = model_preset("llama-2-7b");
  const double layer = 2.0 * (4.0 * 4096 * 4096 + 3.0 * 4096 * 11008 + 2 * 4096), vocabulary = 2.0 * 32000 * 4096;
  const LinkSpec fast{.bandwidth = 1e9, .latency = 0};
  const StageSeconds bare = with_gathered_weights({1, 2}, model, {0, 32, true, true, 1}, {.shards = 4, .overlap = 0}, 2, fast);
  const double gather = 0.75 * (32 * layer + 2 * vocabulary + 2 * 4096) / 1e9;
  EXPECT_NEAR(bare.forward, 1 + gather, 1e-9 * gather);
  EXPECT_NEAR(bare.backward, 2 + gather, 1e-9 * gather);
  const StageSeconds inner = with_gathered_weights({1, 2}, model, {4, 8, false, false, 2}, {.shards = 2, .overlap = 0}, 2, fast);
  EXPECT_NEAR(inner.forward - 1, 0.5 * 4 * (layer + 2 * 2 * 4096) / 2 / 1e9, 1e-9) << "matrices halved, norms whole";
  EXPECT_EQ(with_gathered_weights({1, 2}, model, {0, 32, true, true, 1}, {.shards = 1}, 2, fast), (StageSeconds{1, 2}));
}

TEST(WeightSharding, LeavesAShareOfTheWeightsAndWhatIsGatheredAtATime) {
  const ModelConfig model = model_preset("llama-2-7b");
  const StageShape stage{0, 32, true, true, 1};
  StageMemory memory = stage_memory(model, stage, {}, 2, even_microbatch(1, 64, {1}), 1, 2);
  const int64_t whole = memory.weights, layer = 2 * (4 * 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096);
  ASSERT_GT(layer, 2 * 32000 * 4096);
  const StageMachine machine{.dtype = "bfloat16"};
  const StageMemory sharded = with_sharded_weights(memory, model, stage, {.shards = 8, .overlap = 0}, machine);
  EXPECT_EQ(sharded.weights, whole / 8 + layer);
  EXPECT_EQ(with_sharded_weights(memory, model, stage, {.shards = 8, .overlap = 1}, machine).weights, whole / 8 + 2 * layer);
  EXPECT_EQ(sharded.activations, memory.activations);
  EXPECT_EQ(with_sharded_weights(memory, model, stage, {.shards = 1}, machine), memory);
}

TEST(ReplicaCandidates, WithShardedWeightsHoldWhatACopyAloneCannot) {
  const ModelConfig model = model_preset("llama-2-13b");
  JobShape job{.name = "a", .batch_size = 8, .lengths = {{{512, 1}}}};
  job.adapters = {{0, AdapterMethod::lora, 0, Projection::q, 16, 0}};
  ClusterSpec cluster;
  // 26 GB of weights, 24 GiB devices.
  cluster.nodes = {{.name = "n", .count = 1, .devices = 4, .device = device_preset("RTX4090"), .link = link_preset("pcie4")}};
  const auto candidates = replica_candidates(model, {job}, cluster, cluster.nodes[0], "bfloat16", {.most_shards = 4});
  const auto find = [&](const std::string& name) {
    for (const ReplicaCandidate& each : candidates) {
      if (each.configuration.name() == name) return each.configuration;
    }
    ADD_FAILURE() << name;
    return Configuration{};
  };
  EXPECT_EQ(find("<1,1>").chunk_tokens, 0);
  const Configuration sharded = find("<1,1>/4"), stages = find("<1,4>");
  EXPECT_GT(sharded.chunk_tokens, 0);
  EXPECT_EQ(sharded.devices(), 4);
  // Four copies take a chunk each in the time of one; costs are of one of them.
  const std::vector<int64_t> lengths = {512};
  const BucketCosts costs = bucket_costs(sharded, lengths);
  const int64_t rows = sharded.chunk_tokens / 512;
  EXPECT_DOUBLE_EQ(costs.seconds[0], sharded.chunk_seconds(rows, 512) / static_cast<double>(rows));
  EXPECT_EQ(costs.copies, 4);
  EXPECT_EQ(costs.fill, 0);
  EXPECT_EQ(costs.devices, 4);
  EXPECT_NEAR(sharded.rate(512) * costs.seconds[0], 512, 1e-9);
  EXPECT_GT(stages.chunk_tokens, 0);
  for (const ReplicaCandidate& each : candidates) EXPECT_LE(each.configuration.devices(), 4);
}

}  // namespace
}  // namespace cotune
