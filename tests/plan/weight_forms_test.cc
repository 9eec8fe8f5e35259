#include "plan/shapes/weight_forms.h"

#include <gtest/gtest.h>

#include <optional>

#include "plan/cost/replica_costs.h"
#include "plan/cost/stage_prices.h"

namespace cotune {
namespace {

constexpr WeightForms packed{.element_size = 2, .packed = true};
constexpr WeightForms dense{.element_size = 2, .packed = false};
constexpr WeightForms shared{.element_size = 2, .packed = true, .are_shared = true};

StageMachine machine_with(std::optional<WeightForms> weights) {
  StageMachine machine{.device = device_preset("cpu")};
  machine.device.weights = weights;
  return machine;
}

TEST(WeightForms, AreProductsTwiceAndTheEmbeddingOnce) {
  const ModelConfig model = model_preset("llama-2-7b");
  const int64_t layer = 4 * 4096 * 4096 + 3 * 4096 * 11008, vocabulary = 32000 * 4096, norms = 65 * 4096;
  EXPECT_EQ(held_weight_bytes(model, whole_model(model), packed), 2 * (2 * 32 * layer + 2 * vocabulary + vocabulary) + 4 * norms);
  EXPECT_EQ(held_weight_bytes(model, whole_model(model), dense), 2 * (32 * layer + 2 * vocabulary) + 4 * norms);
  EXPECT_EQ(held_weight_bytes(model, whole_model(model), {.element_size = 4, .packed = true, .parts = 3}),
            12 * (32 * layer + vocabulary) + 4 * vocabulary + 4 * norms);
}

TEST(WeightForms, OfTheStagesAreThoseOfTheModel) {
  const ModelConfig model = model_preset("tinyllama-1.1b");
  for (const int64_t stages : {1, 2, 4}) {
    int64_t sum = 0;
    for (const StageShape& stage : even_stages(model, stages, 1)) sum += held_weight_bytes(model, stage, packed);
    EXPECT_EQ(sum, held_weight_bytes(model, whole_model(model), packed)) << stages;
  }
  const int64_t parts = 2 * held_weight_bytes(model, even_stages(model, 1, 2).front(), packed);
  EXPECT_EQ(parts - held_weight_bytes(model, whole_model(model), packed), 45 * 2048 * 4) << "norms on both ranks";
}

TEST(WeightForms, CountInTheMemoryOfADeviceThatHasThem) {
  const ModelConfig model = model_preset("tinyllama-1.1b");
  const StageShape stage = whole_model(model);
  EXPECT_EQ(frozen_bytes(model, stage, machine_with(std::nullopt)), frozen_bytes(model, stage, 2));
  EXPECT_EQ(frozen_bytes(model, stage, machine_with(packed)), held_weight_bytes(model, stage, packed));
  EXPECT_EQ(frozen_bytes(model, stage, machine_with(shared)), 0);
  const std::vector<JobShape> jobs;
  StagePrices prices(model, jobs, machine_with(packed));
  const StageMemory whole = prices.resident(stage);
  EXPECT_EQ(whole.weights, held_weight_bytes(model, stage, packed));
  const auto sharded = [&](const WeightForms& forms, int64_t shards) {
    return with_sharded_weights(whole, model, stage, {.shards = shards}, machine_with(forms)).weights;
  };
  EXPECT_EQ(sharded(packed, 1), whole.weights);
  EXPECT_EQ(sharded(packed, 2), held_weight_bytes(model, stage, packed, 2));
  EXPECT_LT(sharded(packed, 2), 0.6 * static_cast<double>(whole.weights));
  EXPECT_EQ(sharded(shared, 2), 0);
}

/// The most tokens of a configuration on two devices of so many bytes.
int64_t chunk_tokens(const std::string& configuration, int64_t memory_bytes, std::optional<WeightForms> weights) {
  const ModelConfig model = model_preset("tinyllama-1.1b");
  JobShape job{.name = "a", .batch_size = 8, .lengths = {{{64, 1}}}};
  job.adapters = {{0, AdapterMethod::lora, 0, Projection::q, 16, 0}};
  ClusterSpec cluster;
  cluster.nodes = {{.name = "n", .count = 1, .devices = 2, .device = machine_with(weights).device, .link = link_preset("pcie4")}};
  cluster.nodes[0].device.memory_bytes = memory_bytes;
  cluster.nodes[0].device.usable_memory = 1;
  for (const ReplicaCandidate& each : replica_candidates(model, {job}, cluster, cluster.nodes[0], "bfloat16", {.most_shards = 2})) {
    if (each.configuration.name() == configuration) return each.configuration.chunk_tokens;
  }
  ADD_FAILURE() << configuration;
  return 0;
}

TEST(ReplicaCandidates, HoldNoCopyThatFitsByItsValuesAlone) {
  const ModelConfig model = model_preset("tinyllama-1.1b");
  const int64_t values = frozen_bytes(model, whole_model(model), 2), held = held_weight_bytes(model, whole_model(model), packed);
  ASSERT_GT(held, 19 * values / 10);
  const int64_t between = (values + held) / 2;
  EXPECT_GT(chunk_tokens("<1,1>", between, std::nullopt), 0);
  EXPECT_EQ(chunk_tokens("<1,1>", between, packed), 0);
  EXPECT_GT(chunk_tokens("<1,2>", between, packed), 0);
  EXPECT_GT(chunk_tokens("<2,1>", between, packed), 0);
  EXPECT_GT(chunk_tokens("<1,1>/2", between, packed), 0);
  EXPECT_GT(chunk_tokens("<1,1>", values / 2, shared), 0) << "weights that threads share are on no device's account";
}

}  // namespace
}  // namespace cotune
