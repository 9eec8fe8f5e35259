// The counted bytes of a round are those that the schedule predicts, to the byte.

#include "schedule/memory/step_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "engine/labelled_rows.h"
#include "engine/memory_facts.h"
#include "engine/random_job.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "schedule/profile.h"

namespace cotune::testing {
namespace {

class StepMemoryOfRounds : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  static void SetUpTestSuite() { install_counting_allocator(); }
  void SetUp() override {
    if (!test_device().is_cpu()) GTEST_SKIP() << "counts the host's memory";
    if (kernel_isa(GetParam(), at::kCPU) == kernels::Isa::none) GTEST_SKIP() << "this processor takes ATen's operators";
  }
};

struct Participant {
  RandomJob job;
  std::unique_ptr<Adapter> adapter;
  Batch batch;
};

RandomJob random_kind(uint64_t seed, int kind, std::vector<int64_t> rows) {
  const auto width = static_cast<int64_t>(1 + uniform_below(seed, 1, 70));
  if (kind == 0) return bottleneck_job("bottleneck", seed, width, Activation::gelu, std::move(rows));
  if (kind == 1) return diff_pruning_job("diff", seed, 0.05, std::move(rows));
  const bool few = uniform(seed, 2) < 0.4;
  return lora_job("lora", seed, width, uniform(seed, 3) < 0.4 ? 0.1 : 0,
                  few ? std::vector<std::string>{"k_proj", "up_proj"} : std::vector<std::string>{"all-linear"}, std::move(rows));
}

std::vector<Participant> random_participants(uint64_t seed, const Backbone& backbone, Interpreter& interpreter) {
  std::vector<Participant> participants;
  const auto count = 1 + uniform_below(seed, 10, 4);
  for (uint64_t j = 0; j < count; ++j) {
    const uint64_t job_seed = seed * 10 + j;
    std::vector<int64_t> rows;
    for (uint64_t r = 0; r < 1 + uniform_below(job_seed, 11, 5); ++r) {
      rows.push_back(2 + static_cast<int64_t>(uniform_below(job_seed, 20 + r, r == 0 ? 900 : 90)));
    }
    RandomJob job = random_kind(job_seed, static_cast<int>(uniform_below(job_seed, 12, 5)), rows);
    auto adapter = job.make_adapter(backbone.config(), backbone.compute());
    if (adapter->selection_passes() > 0) select_alone(interpreter, job, *adapter);
    Batch batch = job.batch(0, backbone.config().vocabulary_size);
    for (BatchRow& row : batch.rows) {
      for (size_t i = 0; i < row.learned.size(); ++i) row.learned[i] = uniform(job_seed, 1000 + i) < 0.7;
    }
    participants.push_back({std::move(job), std::move(adapter), std::move(batch)});
  }
  return participants;
}

PackingPolicy random_policy(uint64_t seed, int64_t layer_count) {
  return {.layout = uniform(seed, 1) < 0.6 ? Layout::ragged : uniform(seed, 2) < 0.5 ? Layout::padded : Layout::chunked,
          .token_budget = 256 * static_cast<int64_t>(1 + uniform_below(seed, 3, 5)),
          .recompute = uniform(seed, 4) < 0.3,
          .layer_count = layer_count};
}

std::vector<AdapterShape> shapes_of(int32_t job, const Participant& participant) {
  std::vector<AdapterShape> shapes;
  for (const AdaptedModule& module : participant.adapter->setup().modules) {
    shapes.push_back({job, participant.adapter->method(), module.layer, module.projection, module.r, 0,
                      participant.job.adapter.dropout > 0});
  }
  return shapes;
}

TEST_P(StepMemoryOfRounds, IsWhatTheEngineTakesToTheByte) {  // MX-12
  const auto backbone = random_backbone(kernel_friendly_config(2), GetParam());
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Interpreter interpreter(backbone);
    std::vector<Participant> participants = random_participants(seed, *backbone, interpreter);
    std::vector<JobRound> rounds;
    std::vector<BatchShape> batches;
    PlannedStep step;
    for (size_t j = 0; j < participants.size(); ++j) {
      Participant& each = participants[j];
      JobRound round;
      round.job = static_cast<int32_t>(j);
      round.adapter = each.adapter.get();
      round.batch = &each.batch;
      round.optimizer = each.job.optimizer;
      round.optimizer.step = 1;
      rounds.push_back(std::move(round));
      batches.push_back(each.batch.shape(static_cast<int32_t>(j), each.adapter->lowest_layer()));
      for (const AdapterShape& shape : shapes_of(static_cast<int32_t>(j), each)) step.adapters.push_back(shape);
    }
    step.plan = plan_step(batches, random_policy(seed, backbone->config().layer_count));
    step.labelled = labelled_rows(step.plan, rounds);
    const std::optional<StepMemory> predicted = step_memory(backbone->config(), step, memory_facts(GetParam(), at::kCPU));
    ASSERT_TRUE(predicted.has_value());

    const MemoryUsage before = memory_usage();
    reset_memory_peaks();
    interpreter.run(step.plan, rounds);
    const MemoryUsage after = memory_usage();
    const auto taken = [&](MemoryKind kind) { return after.peak_bytes[static_cast<size_t>(kind)] - before[kind]; };
    EXPECT_EQ(predicted->activations, taken(MemoryKind::activations)) << seed;
    EXPECT_EQ(predicted->chain_kv, taken(MemoryKind::chain_kv)) << seed;
    EXPECT_EQ(predicted->workspace, taken(MemoryKind::workspace)) << seed;
    EXPECT_EQ(predicted->logits, taken(MemoryKind::logits)) << seed;
    EXPECT_EQ(predicted->together, after.peak_live_bytes - before.live_bytes()) << seed;
    EXPECT_EQ(taken(MemoryKind::gradients), 0) << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, StepMemoryOfRounds, ::testing::Values(at::kBFloat16, at::kFloat));

TEST(StepMemory, IsUnknownWhereAtenComputes) {
  ModelConfig config = model_preset("smollm2-135m");
  config.layer_count = 1;
  const PlannedStep step = planned_step(config, {{{AdapterMethod::lora, 4, 0, 0, {Projection::q}, {20}}}});
  EXPECT_TRUE(step_memory(config, step, {}).has_value());
  EXPECT_FALSE(step_memory(config, step, {.packed = false}).has_value());
  EXPECT_FALSE(step_memory(config, step, {.element_size = 8}).has_value());
  config.head_dim = 72;
  EXPECT_FALSE(step_memory(config, step, {}).has_value()) << "our attention takes multiples of 16";
}

}  // namespace
}  // namespace cotune::testing
