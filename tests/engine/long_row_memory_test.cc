// A row longer than the token budget, recomputed: its memory grows by layer inputs, keys and values, and what the threads of attention work in,
// and by nothing else.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "engine/memory_facts.h"
#include "engine/random_job.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "schedule/memory/memory_shapes.h"
#include "schedule/memory/peak_memory.h"
#include "support/on_device.h"

namespace cotune::testing {
namespace {

ModelConfig long_context_config() {
  ModelConfig config = kernel_friendly_config(3);
  config.context_length = 8192;
  return config;
}

struct Peaks {
  int64_t live = 0;      ///< all kinds together, above what was alive before
  int64_t chain_kv = 0;
};

Peaks peaks_of_row(Interpreter& interpreter, const RandomJob& form, int64_t tokens, const PackingPolicy& policy) {
  RandomJob job = form;
  job.row_lengths = {tokens};
  const Backbone& backbone = interpreter.stage().backbone();
  const auto adapter = job.make_adapter(backbone.config(), backbone.compute());
  if (adapter->selection_passes() > 0) {
    RandomJob selecting = form;
    selecting.row_lengths = {64};
    select_alone(interpreter, selecting, *adapter);
  }
  JobRound round;
  const Batch batch = job.batch(0, backbone.config().vocabulary_size);
  round.adapter = adapter.get();
  round.batch = &batch;
  round.optimizer = job.optimizer;
  round.optimizer.step = 1;
  const int64_t before = memory_usage().live_bytes();
  reset_memory_peaks();
  run_round(interpreter, {round}, policy);
  const MemoryUsage usage = memory_usage();
  return {usage.peak_live_bytes - before, usage.peak_bytes[static_cast<size_t>(MemoryKind::chain_kv)]};
}

class LongRow : public ::testing::TestWithParam<AdapterMethod> {
 protected:
  static void SetUpTestSuite() { install_counting_allocator(); }
  static RandomJob job() {
    switch (GetParam()) {
      case AdapterMethod::lora: return lora_job("lora", 1, 8, 0.1, {"all-linear"}, {});
      case AdapterMethod::bottleneck: return bottleneck_job("bottleneck", 2, 8, Activation::gelu, {});
      default: return diff_pruning_job("diff", 3, 0.02, {});
    }
  }
};

TEST_P(LongRow, TakesLayerInputsKeysValuesAndScratchOfAttentionAndNothingElseOfItsLength) {
  SKIP_ON_A_DEVICE() << "counts the host's memory";
  const ModelConfig config = long_context_config();
  const auto backbone = random_backbone(config, at::kBFloat16);
  if (kernel_isa(at::kBFloat16, at::kCPU) == kernels::Isa::none) {
    GTEST_SKIP() << "ATen's attention holds the scores of a chunk against all keys";
  }
  Interpreter interpreter(backbone);
  const PackingPolicy policy{.token_budget = 256, .recompute = true, .layer_count = config.layer_count};
  const Peaks shorter = peaks_of_row(interpreter, job(), 2048, policy), longer = peaks_of_row(interpreter, job(), 4096, policy);
  const int64_t keys_and_values = 2 * config.key_value_size() * config.layer_count * (2 + 4);
  EXPECT_LE(longer.chain_kv - shorter.chain_kv, 2048 * keys_and_values);
  // Bottleneck adapters need no gradient from the lowest layer's attention.
  EXPECT_GE(longer.chain_kv - shorter.chain_kv, 2048 * (keys_and_values - 2 * config.key_value_size() * 4));
  // Inputs of the layers and of the head, keys and values; tokens, labels and positions of the chunks are the rest.
  const int64_t inputs = (config.layer_count + 1) * config.hidden_size * 4;
  const auto per_token = static_cast<double>(longer.live - shorter.live) / 2048;
  const MemoryFacts facts = memory_facts(at::kBFloat16, at::kCPU);
  const auto scratch = [&](int64_t tokens) { return facts.attention_threads * attention_scratch_bytes(config, tokens, Direction::backward, facts); };
  const auto scratch_per_token = static_cast<double>(scratch(4096) - scratch(2048)) / 2048;
  EXPECT_LE(per_token, 1.06 * static_cast<double>(inputs + keys_and_values) + scratch_per_token);
}

TEST_P(LongRow, StaysWithinWhatIsPredicted) {
  SKIP_ON_A_DEVICE() << "counts the host's memory";
  const ModelConfig config = long_context_config();
  const auto backbone = random_backbone(config, at::kBFloat16);
  if (kernel_isa(at::kBFloat16, at::kCPU) == kernels::Isa::none) GTEST_SKIP() << "no kernels of our own here";
  Interpreter interpreter(backbone);
  for (const bool recompute : {false, true}) {
    const PackingPolicy policy{.token_budget = 512, .recompute = recompute, .layer_count = config.layer_count};
    RandomJob form = job();
    JobFootprint footprint{.row_count = 1, .longest_row = 2048};
    const auto adapter = form.make_adapter(config, at::kBFloat16);
    for (const AdaptedModule& module : adapter->setup().modules) {
      footprint.adapters.push_back({0, adapter->method(), module.layer, module.projection, module.r, 0});
    }
    MemoryFacts facts = memory_facts(at::kBFloat16, at::kCPU);
    facts.weight_bytes = 1;
    const MemoryEstimate estimate = predict_memory(config, {&footprint, 1}, policy, facts);
    const int64_t dynamic = estimate.activations + estimate.chain_kv + estimate.workspace + estimate.logits;
    const Peaks peaks = peaks_of_row(interpreter, form, 2048, policy);
    EXPECT_LE(peaks.live, dynamic);
    EXPECT_GE(2 * peaks.live, dynamic) << "a prediction twice too high keeps jobs waiting";
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, LongRow,
                         ::testing::Values(AdapterMethod::lora, AdapterMethod::bottleneck, AdapterMethod::diff_pruning),
                         [](const auto& info) {
                           return info.param == AdapterMethod::lora         ? "Lora"
                                  : info.param == AdapterMethod::bottleneck ? "Bottleneck"
                                                                            : "DiffPruning";
                         });

}  // namespace
}  // namespace cotune::testing
