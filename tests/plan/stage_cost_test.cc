#include "plan/cost/stage_cost.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/error.h"
#include "base/random.h"
#include "model/config/tensor_shard.h"
#include "plan/cost/pipeline_seconds.h"
#include "plan/cost/priced_stage.h"
#include "plan/cost/replica_costs.h"
#include "plan/cost/stage_memory.h"
#include "schedule/operator_cost.h"
#include "schedule/pipeline/one_f_one_b.h"
#include "schedule/pipeline/pipeline_cluster.h"
#include "schedule/small_model.h"

namespace cotune {
namespace {

/// Everything takes one second a FLOP, memory and launches nothing.
StageMachine counting_machine() {
  StageMachine machine;
  machine.device = {.name = "count", .memory_bytes = 1, .flops = {{"bfloat16", 1}}, .memory_bandwidth = 1e30,
                    .compute_efficiency = 1, .launch_seconds = 0};
  return machine;
}

std::vector<AdapterShape> lora_in_every_layer(const ModelConfig& model, int32_t job, int64_t rank) {
  std::vector<AdapterShape> adapters;
  for (int64_t layer = 0; layer < model.layer_count; ++layer) {
    for (const Projection projection : {Projection::q, Projection::v, Projection::down}) {
      adapters.push_back({job, AdapterMethod::lora, layer, projection, rank, 0});
    }
  }
  return adapters;
}

TEST(StageSeconds, OnAMachineThatCountsAreTheFlopsOfTheList) {
  const ModelConfig model = model_preset("tinyllama-1.1b");
  for (const std::pair<int64_t, int64_t>& layers : {std::pair<int64_t, int64_t>{0, 22}, {0, 9}, {9, 22}, {5, 7}, {10, 16}}) {
    const StageShape stage{layers.first, layers.second, layers.first == 0, layers.second == 22, 1};
    std::vector<AdapterShape> adapters = lora_in_every_layer(model, 0, 16), second = lora_everywhere(model, 1, 4);
    adapters.insert(adapters.end(), second.begin(), second.end());
    const MicrobatchCounts counts = even_microbatch(4, 200, {0.75, 0.25});
    const StageSeconds seconds = stage_seconds(model, stage, adapters, counts, counting_machine());
    const auto flops = [&](Direction direction) {
      return total_cost(model, stage, stage_operators(model, stage, adapters, direction), counts, 2).flops;
    };
    EXPECT_NEAR(seconds.forward / flops(Direction::forward), 1, 1e-9) << layers.first;
    EXPECT_NEAR(seconds.backward / flops(Direction::backward), 1, 1e-9) << layers.first;
  }
}

TEST(StageSeconds, OfSequenceParallelRanksCommunicateForAsLongAndForLorasColumnsBesides) {
  const ModelConfig model = model_preset("tinyllama-1.1b");
  StageMachine machine = counting_machine();
  machine.device.flops["float32"] = 1;
  machine.dtype = "float32";
  machine.link = {.bandwidth = 1e9, .latency = 0};
  const MicrobatchCounts counts = even_microbatch(4, 200, {1});
  StageShape stage{9, 22, false, true, 2};
  const StageSeconds whole = PricedStage(model, stage, lora_in_every_layer(model, 0, 16), machine).collectives(counts);
  stage.is_sequence_parallel = true;
  const StageSeconds slices = PricedStage(model, stage, lora_in_every_layer(model, 0, 16), machine).collectives(counts);
  EXPECT_NEAR(slices.forward / whole.forward, 1, 1e-12);
  const double columns = 13 * 2 * 16;  // q's and v's of each layer
  EXPECT_NEAR(slices.backward - whole.backward, 800 * columns * 4 / 2 / 1e9, 1e-12);
}

/// Seconds that ranks take to exchange what a rank's share of `values` per token is: the slowest link of a ring is used (N − 1) times.
double ring_seconds(int64_t ranks, int64_t tokens, int64_t values, int64_t bytes_of_each, const Link& link) {
  const auto steps = static_cast<double>(ranks - 1);
  return steps * (static_cast<double>(tokens * values * bytes_of_each) / static_cast<double>(ranks) / link.bytes_per_s + link.latency_s);
}

TEST(CollectiveSeconds, OfDividedTokensAreThoseOfTheBytesThatRanksSendInARing) {
  ModelConfig model = model_preset("tinyllama-1.1b");
  model.layer_count = 2;
  const std::vector<AdapterShape> adapters = lora_in_every_layer(model, 0, 16);
  const Link link{.latency_s = 3e-6, .bytes_per_s = 7e9};
  const int64_t tokens = 801, h = model.hidden_size;
  for (const std::string dtype : {"bfloat16", "float32", "float64"}) {
    const int64_t element = dtype == "bfloat16" ? 2 : dtype == "float32" ? 4 : 8, sum = std::max<int64_t>(4, element);
    for (const int64_t ranks : {2, 4}) {
      StageShape stage = whole_model(model);
      stage.tensor_parallel = ranks;
      StageMachine machine;
      machine.device = device_preset("A40");
      machine.link = {.bandwidth = link.bytes_per_s, .latency = link.latency_s};
      machine.dtype = dtype;
      const auto priced = [&](Direction direction) {
        double seconds = 0;
        for (const Operator& op : stage_operators(model, stage, adapters, direction)) seconds += collective_seconds(model, stage, op, tokens, machine);
        return seconds;
      };
      const auto scatter = [&](int64_t values) { return ring_seconds(ranks, tokens, values, sum, link); };
      const auto gather = [&](int64_t values) { return ring_seconds(ranks, tokens, values, element, link); };
      const double reduce = 2 * scatter(h);
      EXPECT_NEAR(priced(Direction::forward) / (4 * reduce), 1, 1e-12);
      EXPECT_NEAR(priced(Direction::backward) / (3 * reduce), 1, 1e-12);
      stage.is_sequence_parallel = true;
      EXPECT_NEAR(priced(Direction::forward) / (4 * (gather(h) + scatter(h))), 1, 1e-12);
      // Of q, v and down LoRA's q and v ride; nothing gathers an error for o alone, which input gradients go through all the same.
      const double upper = gather(h) + scatter(h) + gather(h) + scatter(h + 32), lowest = gather(h) + scatter(h) + gather(h) + scatter(32);
      EXPECT_NEAR(priced(Direction::backward) / (upper + lowest), 1, 1e-12) << dtype << " " << ranks;
    }
  }
}

TEST(PricedStage, KeepsOfDividedTokensWhatTheLargestSliceAndTheFeaturesAre) {
  const ModelConfig model = model_preset("tinyllama-1.1b");
  const auto below = [](uint64_t seed, uint64_t number, uint64_t bound) { return static_cast<int64_t>(uniform_below(seed, number, bound)); };
  for (uint64_t seed = 0; seed < 30; ++seed) {
    std::vector<AdapterShape> adapters = lora_in_every_layer(model, 0, 1 + below(seed, 0, 40));
    for (int64_t layer = 0; layer < model.layer_count; ++layer) {
      adapters.push_back({1, AdapterMethod::bottleneck, layer, Projection::down, 1 + below(seed, 1, 99), 0});
    }
    const StageShape stage{seed % 3 == 0 ? 4 : 0, seed % 4 == 0 ? 6 : 22, seed % 3 != 0, seed % 4 != 0, 4, true};
    StageMachine machine{device_preset("A40"), link_preset("pcie4"), seed % 2 == 0 ? "bfloat16" : "float32"};
    machine.recompute = seed % 5 < 2;
    const MicrobatchCounts counts = even_microbatch(1, 1 + below(seed, 2, 700), {0.7, 0.3});
    const PricedStage priced(model, stage, adapters, machine);
    const StageMemory memory = stage_memory(model, stage, adapters, 2, counts, 1, machine.element_size(), machine.recompute);
    EXPECT_EQ(priced.kept_bytes(counts), memory.activations) << seed;
    EXPECT_EQ(priced.workspace_bytes(counts), memory.workspace) << seed;
  }
}

TEST(StageSeconds, OfManyLikeLayersAreThoseOfTheWholeList) {
  const ModelConfig model = model_preset("smollm2-135m");
  const StageMachine machine{device_preset("A40"), link_preset("pcie4"), "bfloat16"};
  const std::vector<AdapterShape> adapters = lora_in_every_layer(model, 0, 16);
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const auto first = static_cast<int64_t>(uniform_below(seed, 0, 25));
    const int64_t last = first + 1 + static_cast<int64_t>(uniform_below(seed, 1, static_cast<uint64_t>(30 - first)));
    const StageShape stage{first, last, first == 0, last == 30, seed % 2 == 0 ? 1 : 3};
    const MicrobatchCounts counts = even_microbatch(1 + static_cast<int64_t>(uniform_below(seed, 2, 8)), 1 + static_cast<int64_t>(uniform_below(seed, 3, 900)), {1});
    const StageSeconds fast = stage_seconds(model, stage, adapters, counts, machine);
    const double forward = list_seconds(model, stage, stage_operators(model, stage, adapters, Direction::forward), counts, machine);
    const double backward = list_seconds(model, stage, stage_operators(model, stage, adapters, Direction::backward), counts, machine);
    EXPECT_NEAR(fast.forward, forward, 1e-9 * forward) << seed;
    EXPECT_NEAR(fast.backward, backward, 1e-9 * backward) << seed;
  }
}

TEST(StageSeconds, OfFusedAdaptersAreBoundByALaunchUntilTheDeviceIsFull) {
  ModelConfig model = model_preset("tinyllama-1.1b");
  StageMachine machine = counting_machine();
  const StageShape stage{0, 22, true, true, 1};
  const auto forward_seconds = [&](int jobs, double launch) {
    std::vector<AdapterShape> adapters;
    for (int32_t job = 0; job < jobs; ++job) adapters.push_back({job, AdapterMethod::lora, 3, Projection::o, 8, 0});
    machine.device.launch_seconds = launch;
    // A fixed number of tokens per job; without adapters the rest costs the same.
    MicrobatchCounts counts = even_microbatch(8, 64, {1});
    counts.job_tokens.assign(static_cast<size_t>(jobs), 64);
    const auto list = stage_operators(model, stage, adapters, Direction::forward);
    auto bare = list;
    for (Operator& op : bare) op.adapters.clear();
    return list_seconds(model, stage, list, counts, machine) - list_seconds(model, stage, bare, counts, machine);
  };
  const double work = forward_seconds(1, 0);
  EXPECT_GT(work, 0);
  // τ = 1, u = 0.4: two fit beside each other, four take 1.6.
  const double launch = work / 0.4;
  EXPECT_NEAR(forward_seconds(2, launch) / launch, 1.0, 1e-6);
  EXPECT_NEAR(forward_seconds(4, launch) / launch, 1.6, 1e-6);
}

TEST(StageSeconds, GrowWithTokensAndCountCommunication) {
  const ModelConfig model = model_preset("llama-2-7b");
  const std::vector<AdapterShape> adapters = lora_in_every_layer(model, 0, 16);
  StageMachine machine{device_preset("A100-40"), link_preset("nvlink-600"), "bfloat16"};
  double before = 0;
  for (int64_t tokens = 64; tokens <= 4096; tokens *= 2) {
    const double seconds = stage_seconds(model, {0, 32, true, true, 2}, adapters, even_microbatch(1, tokens, {1}), machine).total();
    EXPECT_GE(seconds, before);
    before = seconds;
  }
  const MicrobatchCounts counts = even_microbatch(1, 2048, {1});
  const double fast = stage_seconds(model, {0, 32, true, true, 2}, adapters, counts, machine).total();
  machine.link.bandwidth /= 2;
  const double slow = stage_seconds(model, {0, 32, true, true, 2}, adapters, counts, machine).total();
  // Forward two all-reduces a layer, backward two but for the lowest layer's input; half of 2·(n − 1)/n·bytes each, in f32.
  const double one = 2048.0 * 4096 * 4 / machine.link.bandwidth;
  EXPECT_NEAR(slow - fast, (64 + 63) * one / 2, 1e-6 * one);
  machine.dtype = "float64";
  EXPECT_THROW(stage_seconds(model, {0, 32, true, true, 2}, adapters, counts, machine), UserError);
}

TEST(EvenMicrobatch, SharesOutAllTokens) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::vector<double> shares;
    double sum = 0;
    for (uint64_t k = 0; k < 1 + seed % 7; ++k) sum += shares.emplace_back(uniform(seed, k) + 1e-3);
    for (double& share : shares) share /= sum;
    const MicrobatchCounts counts = even_microbatch(3, 1 + static_cast<int64_t>(seed), shares);
    int64_t total = 0;
    for (const int64_t tokens : counts.job_tokens) {
      EXPECT_GE(tokens, 0);
      total += tokens;
    }
    EXPECT_EQ(total, counts.tokens);
  }
}

TEST(PipelineSeconds, AreThePapersFormulas) {
  const std::vector<double> equal(4, 1.0);
  EXPECT_EQ(pipeline_seconds(equal, 8), 22);  // 2(S − 1)λ + 2Cλ
  for (const int32_t stages : {1, 2, 4, 8}) {
    for (const int32_t microbatches : {1, 3, 8}) {
      const PipelineWork work = uniform_work(stages, 1, microbatches, 1, {.forward_s = 1, .backward_s = 1});
      const auto simulated = ComputeGraph(work, {}).times(one_f_one_b(work, BatchBoundary::flush));
      ASSERT_TRUE(simulated);
      EXPECT_DOUBLE_EQ(makespan_s(*simulated), pipeline_seconds(std::vector<double>(static_cast<size_t>(stages), 1.0), microbatches))
          << stages << " stages, " << microbatches << " microbatches";
    }
  }
  EXPECT_EQ(pipeline_seconds(std::vector<double>{3, 1, 2}, 4), 2 * (3 + 1) + 2 * 4 * 3);
  EXPECT_EQ(pipeline_seconds({}, 4), 0);
  EXPECT_EQ(even_chunks_seconds(2, 5, 3), 14);
  EXPECT_EQ(uneven_chunks_seconds(std::vector<double>{2, 2, 2, 2, 2}, 3), even_chunks_seconds(2, 5, 3));
  EXPECT_EQ(uneven_chunks_seconds(std::vector<double>{5, 1}, 1), 6);
  EXPECT_EQ(uneven_chunks_seconds(std::vector<double>{5, 1}, 4), 21);
}

TEST(StageMemory, CountsTheWeightsOfEveryStageOnce) {
  for (const char* name : {"llama-2-7b", "qwen2.5-32b", "opt-30b", "smollm2-135m"}) {
    const ModelConfig model = model_preset(name);
    for (const int64_t stages : {1, 2, 4}) {
      int64_t total = 0;
      for (const StageShape& stage : even_stages(model, stages, 1)) {
        total += stage_memory(model, stage, {}, 2, even_microbatch(1, 64, {1}), 1, 2).weights;
      }
      const int64_t second_embedding = model.tied_embeddings && stages > 1 ? model.vocabulary_size * model.hidden_size : 0;
      EXPECT_EQ(total, 2 * (parameter_count(model) + second_embedding)) << name << " " << stages;
    }
  }
}

TEST(StageMemory, GrowsWithWhatIsInFlightAndNamesWhatOverflows) {
  const ModelConfig model = model_preset("llama-2-7b");
  const std::vector<AdapterShape> adapters = lora_in_every_layer(model, 0, 16);
  const MicrobatchCounts counts = even_microbatch(2, 512, {1});
  const StageShape stage = even_stages(model, 2, 1)[0];
  const StageMemory one = stage_memory(model, stage, adapters, 2, counts, 1, 2);
  const StageMemory two = stage_memory(model, stage, adapters, 2, counts, 2, 2);
  EXPECT_EQ(two.activations, 2 * one.activations);
  EXPECT_EQ(two.total() - one.total(), one.activations);
  // q and v: 16·(4096 + 4096); down: 16·(11008 + 4096); value, gradient, two moments in f32; 16 layers.
  EXPECT_EQ(one.adapters, 16 * 16 * (2 * 8192 + 15104) * 16);
  EXPECT_EQ(two.overflowing_term(two.total()), "");
  EXPECT_EQ(two.overflowing_term(two.total() - 1), "activations");
  EXPECT_EQ(two.overflowing_term(two.weights - 1), "weights");
}

TEST(ReplicaCandidates, NeverExceedTheDeviceAndSayWhyNothingFits) {
  const ModelConfig model = model_preset("llama-2-70b");
  JobShape job{.name = "a", .batch_size = 8, .lengths = {{{512, 1}}}, .adapters = lora_in_every_layer(model, 0, 16)};
  ClusterSpec cluster;
  cluster.nodes = {{.name = "n", .count = 2, .devices = 8, .device = device_preset("A100-40"), .link = link_preset("nvlink-600")}};
  cluster.network = link_preset("infiniband-200");
  const NodeGroup& group = cluster.nodes[0];
  int64_t fitting = 0;
  for (const ReplicaCandidate& each : replica_candidates(model, {job}, cluster, group, "bfloat16")) {
    const Configuration& configuration = each.configuration;
    if (configuration.chunk_tokens == 0) {
      EXPECT_NE(each.reason, "") << configuration.name();
      EXPECT_GT(each.memory.total(), group.device.usable_bytes());
      continue;
    }
    ++fitting;
    EXPECT_EQ(each.reason, "");
    EXPECT_LE(each.memory.total(), group.device.usable_bytes()) << configuration.name();
    EXPECT_GE(configuration.devices(), 4) << "138 GB of weights on 40 GiB devices";
    EXPECT_GT(configuration.chunk_seconds(1, 512), 0);
    EXPECT_GT(configuration.rate(64), 0);
  }
  EXPECT_GT(fitting, 3);
}

/// Eight kv heads on 16 and 32 ranks: each rank holds a whole one, as in sharded weights of the engine.
TEST(FrozenBytes, CountKvHeadsThatSeveralRanksHold) {
  const ModelConfig model = model_preset("llama-3-8b");
  for (const int64_t ranks : {1, 2, 8, 16, 32}) {
    int64_t values = 2 * model.hidden_size;  // two norms
    for (const Projection projection : {Projection::q, Projection::k, Projection::v, Projection::o, Projection::gate, Projection::up, Projection::down}) {
      values += shard_inputs(model, projection, {0, ranks}).count * shard_outputs(model, projection, {0, ranks}).count;
    }
    EXPECT_EQ(frozen_bytes(model, {1, 2, false, false, ranks}, 2), 2 * values) << ranks;
  }
}

TEST(ReplicaCandidates, DivideAModelByMoreRanksThanItHasKvHeads) {
  const ModelConfig model = model_preset("llama-3-8b");
  ClusterSpec cluster;
  cluster.nodes = {{.name = "n", .count = 4, .devices = 8, .device = device_preset("A100-40"), .link = link_preset("nvlink-600")}};
  cluster.network = link_preset("infiniband-200");
  const JobShape job{.name = "a", .batch_size = 8, .lengths = {{{512, 1}}}, .adapters = lora_in_every_layer(model, 0, 16)};
  std::set<int64_t> degrees;
  for (const ReplicaCandidate& each : replica_candidates(model, {job}, cluster, cluster.nodes.front(), "bfloat16")) {
    degrees.insert(each.configuration.tensor_parallel);
  }
  EXPECT_EQ(degrees, (std::set<int64_t>{1, 2, 4, 8, 16, 32}));
}

}  // namespace
}  // namespace cotune
