#include "plan/cost/recomputation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>

#include "plan/cost/stage_cost.h"
#include "plan/cost/stage_memory.h"
#include "schedule/step_operators.h"

namespace cotune {
namespace {

/// LoRA on query and value projections from a layer on.
std::vector<AdapterShape> adapters_from(const ModelConfig& model, int64_t first, bool adapts_down) {
  std::vector<AdapterShape> adapters;
  for (int64_t layer = first; layer < model.layer_count; ++layer) {
    for (const Projection projection : {Projection::q, Projection::v}) adapters.push_back({.layer = layer, .projection = projection, .width = 8});
    if (adapts_down) adapters.push_back({.layer = layer, .projection = Projection::down, .width = 8});
  }
  return adapters;
}

TEST(Recomputation, RunsAgainWhatTheEngineDoes) {
  const ModelConfig model = model_preset("smollm2-135m");
  for (const int64_t first : {0, 7}) {
    for (const bool adapts_down : {false, true}) {
      PlannedStep step;
      step.adapters = adapters_from(model, first, adapts_down);
      const BatchShape batch{.job = 0, .row_lengths = {40, 50}, .lowest_layer = first};
      step.plan = plan_step(std::span(&batch, 1), {.token_budget = 256, .recompute = true, .layer_count = model.layer_count});
      step.labelled = {88};
      const StepOperators operators(model, step);
      std::vector<std::string> executed;
      for (const Action& action : step.plan.actions) {
        if (action.kind != ActionKind::recompute) continue;
        for (const Operator* op : operators.of(action)) executed.push_back(op->name());
      }
      std::vector<std::string> ours;
      for (const Operator& op :
           recomputed_operators(stage_operators(model, {.last_layer = model.layer_count}, step.adapters, Direction::forward))) {
        ours.push_back(op.name());
      }
      std::sort(executed.begin(), executed.end());
      std::sort(ours.begin(), ours.end());
      EXPECT_EQ(ours, executed) << first << adapts_down;
    }
  }
}

TEST(Recomputation, KeepsTheInputsAndComputesForwardTwice) {
  const ModelConfig model = model_preset("llama-2-7b");
  const std::vector<AdapterShape> adapters = adapters_from(model, 0, true);
  const MicrobatchCounts counts = even_microbatch(2, 512, {1});
  const StageShape whole{.last_layer = model.layer_count};
  const StageMemory kept = stage_memory(model, whole, adapters, 2, counts, 1, 2);
  const StageMemory again = stage_memory(model, whole, adapters, 2, counts, 1, 2, true);
  const int64_t stream = 1024 * model.hidden_size * 4;  // f32
  EXPECT_EQ(again.activations, (model.layer_count + 1) * stream) << "and the input of the head";
  // The last layer keeps the most: that input, too.
  EXPECT_NEAR(static_cast<double>(again.workspace - kept.workspace),
              static_cast<double>(kept.activations - stream) / static_cast<double>(model.layer_count) + static_cast<double>(stream),
              0.002 * static_cast<double>(again.workspace));
  EXPECT_EQ(again.weights, kept.weights);
  EXPECT_EQ(stage_memory(model, whole, adapters, 2, counts, 3, 2, true).activations, 3 * again.activations);
  StageMachine machine;
  machine.device = device_preset("A40");
  const StageSeconds once = stage_seconds(model, whole, adapters, counts, machine);
  machine.recompute = true;
  const StageSeconds twice = stage_seconds(model, whole, adapters, counts, machine);
  EXPECT_EQ(twice.forward, once.forward);
  EXPECT_NEAR(twice.backward - once.backward, once.forward, 0.01 * once.forward) << "all but the embedding";
}

TEST(Recomputation, StartsAtTheLowestAdapter) {
  const ModelConfig model = model_preset("llama-2-7b");
  const MicrobatchCounts counts = even_microbatch(1, 256, {1});
  const StageShape whole{.last_layer = model.layer_count};
  const auto forward = [&](int64_t first) {
    return stage_operators(model, whole, adapters_from(model, first, false), Direction::forward);
  };
  EXPECT_EQ(recomputed_bytes(model, whole, forward(24), counts, 2).kept, (8 + 1) * 256 * model.hidden_size * 4);
  EXPECT_TRUE(recomputed_operators(forward(model.layer_count)).empty());
}

}  // namespace
}  // namespace cotune
