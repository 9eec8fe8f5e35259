#include "schedule/sequence_parallel.h"

#include <gtest/gtest.h>

#include "schedule/operator_cost.h"
#include "schedule/pipeline/rank_plan.h"
#include "schedule/small_model.h"

namespace cotune {
namespace {

StageShape in_slices(const ModelConfig& config, int64_t ranks) {
  StageShape stage = whole_model(config);
  stage.tensor_parallel = ranks;
  stage.is_sequence_parallel = true;
  return stage;
}

using Names = std::vector<std::string>;

/// Of the operators that communicate: name and collective.
Names collectives_of(const ModelConfig& config, const std::vector<AdapterShape>& adapters, Direction direction) {
  const StageShape stage = in_slices(config, 2);
  Names names;
  for (const Operator& op : stage_operators(config, stage, adapters, direction)) {
    if (!op.communicates) continue;
    const Collective kind = collective_of(stage, op);
    names.push_back(op.name() + (kind == Collective::all_gather ? " gathers" : kind == Collective::reduce_scatter ? " scatters" : " reduces"));
  }
  return names;
}

TEST(TokenSlices, AreEquallyLargeButTheLastOnes) {
  EXPECT_EQ(token_slices(8, 4), (std::vector<int64_t>{0, 2, 4, 6, 8}));
  EXPECT_EQ(token_slices(7, 3), (std::vector<int64_t>{0, 3, 6, 7}));
  EXPECT_EQ(token_slices(5, 4), (std::vector<int64_t>{0, 2, 4, 5, 5}));
  EXPECT_EQ(token_slices(0, 2), (std::vector<int64_t>{0, 0, 0}));
}

TEST(SequenceParallelOperators, GatherBeforeProductsAndScatterBehindThem) {
  ModelConfig config = small_model();
  config.layer_count = 2;
  const std::vector<AdapterShape> lora = lora_everywhere(config, 0, 4);
  EXPECT_EQ(collectives_of(config, lora, Direction::forward),
            (Names{"layers.0.attention_norm gathers", "layers.0.o_proj scatters", "layers.0.mlp_norm gathers", "layers.0.down_proj scatters",
                   "layers.1.attention_norm gathers", "layers.1.o_proj scatters", "layers.1.mlp_norm gathers", "layers.1.down_proj scatters"}));
  EXPECT_EQ(collectives_of(config, lora, Direction::backward),
            (Names{"layers.1.down_error_gather gathers", "layers.1.gate_up_proj_backward scatters", "layers.1.o_error_gather gathers",
                   "layers.1.qkv_proj_backward scatters", "layers.0.down_error_gather gathers", "layers.0.gate_up_proj_backward scatters",
                   "layers.0.o_error_gather gathers", "layers.0.qkv_adapter_gradient scatters"}));
}

TEST(SequenceParallelOperators, GatherInputsForDiffPruningAloneAndErrorsForAllButBottlenecks) {
  ModelConfig config = small_model();
  config.layer_count = 1;
  const auto of = [&](AdapterMethod method, Projection projection) {
    return collectives_of(config, {{.method = method, .projection = projection, .width = 4, .entries = 4}}, Direction::backward);
  };
  using enum AdapterMethod;
  EXPECT_EQ(of(lora, Projection::down), (Names{"layers.0.down_error_gather gathers"}));
  EXPECT_EQ(of(bottleneck, Projection::down), Names{});
  EXPECT_EQ(of(diff_pruning, Projection::down), (Names{"layers.0.down_error_gather gathers"}));
  EXPECT_EQ(of(lora, Projection::up), (Names{"layers.0.down_error_gather gathers", "layers.0.gate_up_adapter_gradient scatters"}));
  EXPECT_EQ(of(diff_pruning, Projection::up), (Names{"layers.0.down_error_gather gathers", "layers.0.gate_up_input_gather gathers"}));
  EXPECT_EQ(of(bottleneck, Projection::o), (Names{"layers.0.down_error_gather gathers", "layers.0.gate_up_proj_backward scatters"}));
}

TEST(SequenceParallelOperators, SendWhatAllReducesSendAndLorasColumns) {
  const ModelConfig config = small_model();
  const StageShape slices = in_slices(config, 2);
  StageShape whole = slices;
  whole.is_sequence_parallel = false;
  std::vector<AdapterShape> adapters = lora_everywhere(config, 0, 4);
  for (const AdapterShape& each : lora_everywhere(config, 1, 6)) adapters.push_back(each);
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    int64_t columns = 0, riding = 0, reduced = 0;
    for (const Operator& op : stage_operators(config, slices, adapters, direction)) {
      if (op.communicates) columns += collective_columns(config, slices, op);
      if (op.communicates) riding += riding_columns(slices, op);
    }
    for (const Operator& op : stage_operators(config, whole, adapters, direction)) {
      if (op.communicates) reduced += 2 * collective_columns(config, whole, op);
    }
    const bool forward = direction == Direction::forward;
    EXPECT_EQ(riding, forward ? 0 : config.layer_count * 5 * 6);  // of the job with most: q, k, v, gate and up
    // The lowest product's error is gathered, and no input gradient scattered.
    EXPECT_EQ(columns - riding, forward ? reduced : reduced + config.hidden_size);
  }
}

/// Of the operators that communicate: name and values of each token.
std::vector<std::pair<std::string, int64_t>> columns_of(const ModelConfig& config, const std::vector<AdapterShape>& adapters, Direction direction) {
  const StageShape stage = in_slices(config, 2);
  std::vector<std::pair<std::string, int64_t>> columns;
  for (const Operator& op : stage_operators(config, stage, adapters, direction)) {
    if (op.communicates) columns.emplace_back(op.name(), collective_columns(config, stage, op));
  }
  return columns;
}

TEST(SequenceParallelOperators, CountTheStreamAndTheColumnsOfTheJobThatHasMostAtThisProduct) {
  ModelConfig config = small_model();
  config.layer_count = 2;
  const int64_t h = config.hidden_size;
  std::vector<AdapterShape> adapters = lora_everywhere(config, 0, 4);
  for (const Projection projection : {Projection::q, Projection::gate}) {
    for (const int64_t layer : {0, 1}) adapters.push_back({.job = 1, .layer = layer, .projection = projection, .width = 9});
  }
  for (const int64_t layer : {0, 1}) {
    adapters.push_back({.job = 2, .method = AdapterMethod::bottleneck, .layer = layer, .projection = Projection::down, .width = 50});
    adapters.push_back({.job = 3, .method = AdapterMethod::diff_pruning, .layer = layer, .projection = Projection::v, .entries = 30});
  }
  using Columns = std::vector<std::pair<std::string, int64_t>>;
  const auto in_layers = [](const std::vector<int64_t>& layers, const Columns& of_layer) {
    Columns all;
    for (const int64_t layer : layers) {
      for (const auto& [name, columns] : of_layer) all.emplace_back("layers." + std::to_string(layer) + "." + name, columns);
    }
    return all;
  };
  EXPECT_EQ(columns_of(config, adapters, Direction::forward),
            in_layers({0, 1}, {{"attention_norm", h}, {"o_proj", h}, {"mlp_norm", h}, {"down_proj", h}}));
  // q, k and v of job 0 are 12 columns, q of job 1 is 9; gate and up of job 0 are 8, gate of job 1 is 9. Of the lowest layer's input there is no gradient.
  Columns backward = in_layers({1}, {{"down_error_gather", h}, {"gate_up_proj_backward", h + 9}, {"o_error_gather", h}, {"qkv_proj_backward", h + 12},
                                     {"qkv_input_gather", h}});
  for (const auto& each : in_layers({0}, {{"down_error_gather", h}, {"gate_up_proj_backward", h + 9}, {"o_error_gather", h},
                                          {"qkv_input_gather", h}, {"qkv_adapter_gradient", 12}})) {
    backward.push_back(each);
  }
  EXPECT_EQ(columns_of(config, adapters, Direction::backward), backward);
}

TEST(SequenceParallelRows, AreSentBetweenStagesAsTheLargestSlice) {
  const std::vector<BatchShape> batches = {{.job = 0, .row_lengths = {70, 31}}};
  const StepPlan plan = plan_step(batches, {.layout = Layout::padded});
  ASSERT_EQ(plan.microbatches.size(), 1u);
  const int64_t tokens = plan.microbatches.front().token_count();
  ASSERT_EQ(tokens, 140);
  const auto sent = [&](int64_t ranks) { return work_of(plan, {0, 1}, {{}, {}}, {0}, {20, 10}, ranks).microbatches.front().message_bytes; };
  EXPECT_EQ(sent(1), (MessageBytes{2800, 1400}));
  EXPECT_EQ(sent(2), (MessageBytes{1400, 700}));
  EXPECT_EQ(sent(3), (MessageBytes{940, 470}));
  StageShape stage = in_slices(small_model(), 3);
  EXPECT_EQ(largest_slice(tokens, stage), token_slices(tokens, 3)[1]);
  const PipelineLayout layout{.stages = {stage, stage}, .stage_rank = {0, 1}};
  const auto free = [](const StepPlan&, size_t, size_t) { return StageCost{}; };
  EXPECT_EQ(work_of({plan}, layout, free, RankPlanOptions{.bytes_per_token = {20, 10}}).microbatches.front().message_bytes, (MessageBytes{940, 470}));
}

TEST(SequenceParallelOperators, KeepASliceOfTheStream) {
  const ModelConfig config = small_model();
  const MicrobatchCounts counts{.tokens = 101, .job_tokens = {101}};
  const auto kept = [&](int64_t ranks, bool divides) {
    StageShape stage = in_slices(config, ranks);
    stage.is_sequence_parallel = divides;
    int64_t bytes = 0;
    for (const Operator& op : stage_operators(config, stage, lora_everywhere(config, 0, 4), Direction::forward)) {
      bytes += saved_bytes(config, stage, op, counts, 2);
    }
    return bytes;
  };
  const int64_t per_token = config.layer_count * 2 * (2 * config.hidden_size + 4) + 4 * config.hidden_size;
  EXPECT_EQ(kept(2, false) - kept(2, true), (101 - 51) * per_token);
}

}  // namespace
}  // namespace cotune
