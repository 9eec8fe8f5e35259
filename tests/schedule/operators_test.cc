#include "schedule/operators.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "schedule/launch_model.h"
#include "schedule/operator_cost.h"
#include "schedule/small_model.h"
#include "schedule/step_plan.h"

namespace cotune {
namespace {

std::vector<std::string> names_of(const std::vector<Operator>& operators) {
  std::vector<std::string> names;
  for (const Operator& op : operators) names.push_back(op.name());
  return names;
}

using Names = std::vector<std::string>;

TEST(StageOperators, ForwardListsEveryOperatorOfEveryLayer) {
  const ModelConfig config = small_model();
  const std::vector<Operator> list = stage_operators(config, whole_model(config), {}, Direction::forward);
  ASSERT_EQ(list.size(), 1u + 8 * 3);
  const Names names = names_of(list);
  EXPECT_EQ(Names(names.begin(), names.begin() + 9),
            (Names{"embedding", "layers.0.attention_norm", "layers.0.qkv_proj", "layers.0.attention", "layers.0.o_proj",
                   "layers.0.mlp_norm", "layers.0.gate_up_proj", "layers.0.swiglu", "layers.0.down_proj"}));
  EXPECT_EQ(names_of(stage_operators(config, whole_model(config), {}, Direction::evaluate)).back(), "loss_head");
}

TEST(StageOperators, BackwardOfAFullyAdaptedModelStopsAtTheLowestAdapter) {
  const ModelConfig config = small_model();
  const Names names =
      names_of(stage_operators(config, whole_model(config), lora_everywhere(config, 0, 4), Direction::backward));
  ASSERT_EQ(names.size(), 1u + 12 + 12 + 10);
  EXPECT_EQ(Names(names.begin(), names.begin() + 13),
            (Names{"head", "layers.2.down_proj_backward", "layers.2.swiglu_backward", "layers.2.down_adapter_gradient",
                   "layers.2.gate_up_proj_backward", "layers.2.mlp_norm_backward", "layers.2.gate_up_adapter_gradient",
                   "layers.2.o_proj_backward", "layers.2.o_adapter_gradient", "layers.2.attention_backward",
                   "layers.2.qkv_proj_backward", "layers.2.attention_norm_backward", "layers.2.qkv_adapter_gradient"}));
  EXPECT_EQ(Names(names.end() - 2, names.end()), (Names{"layers.0.attention_backward", "layers.0.qkv_adapter_gradient"}));
}

TEST(StageOperators, BackwardLeavesOutWhatNobodyNeeds) {
  const ModelConfig config = small_model();
  const auto backward_of = [&](Projection projection, int64_t layer) {
    return names_of(stage_operators(config, whole_model(config), {{.layer = layer, .projection = projection, .width = 4}},
                                    Direction::backward));
  };
  EXPECT_EQ(backward_of(Projection::down, 2), (Names{"head", "layers.2.down_adapter_gradient"}));
  EXPECT_EQ(backward_of(Projection::up, 2),
            (Names{"head", "layers.2.down_proj_backward", "layers.2.swiglu_backward",
                   "layers.2.gate_up_adapter_gradient"}));
  EXPECT_EQ(backward_of(Projection::o, 2),
            (Names{"head", "layers.2.down_proj_backward", "layers.2.swiglu_backward", "layers.2.gate_up_proj_backward",
                   "layers.2.mlp_norm_backward", "layers.2.o_adapter_gradient"}));
  EXPECT_EQ(backward_of(Projection::v, 2),
            (Names{"head", "layers.2.down_proj_backward", "layers.2.swiglu_backward", "layers.2.gate_up_proj_backward",
                   "layers.2.mlp_norm_backward", "layers.2.o_proj_backward", "layers.2.attention_backward",
                   "layers.2.qkv_adapter_gradient"}));
  // A layer above the lowest adapted one passes its gradient on, without adapter gradients of its own.
  EXPECT_EQ(backward_of(Projection::down, 1),
            (Names{"head", "layers.2.down_proj_backward", "layers.2.swiglu_backward", "layers.2.gate_up_proj_backward",
                   "layers.2.mlp_norm_backward", "layers.2.o_proj_backward", "layers.2.attention_backward",
                   "layers.2.qkv_proj_backward", "layers.2.attention_norm_backward", "layers.1.down_adapter_gradient"}));
  EXPECT_EQ(names_of(stage_operators(config, whole_model(config), {}, Direction::backward)), (Names{"head"}));
}

TEST(StageOperators, AStagePassesTheGradientToAdaptersBelowIt) {
  const ModelConfig config = small_model();
  const StageShape upper{.first_layer = 2, .last_layer = 3, .has_embedding = false};
  const std::vector<AdapterShape> below = {{.layer = 0, .projection = Projection::q, .width = 4}};
  EXPECT_EQ(names_of(stage_operators(config, upper, below, Direction::backward)).back(),
            "layers.2.attention_norm_backward");
  const StageShape lower{.first_layer = 0, .last_layer = 2, .has_head = false};
  const std::vector<AdapterShape> above = {{.layer = 2, .projection = Projection::q, .width = 4}};
  EXPECT_TRUE(stage_operators(config, lower, above, Direction::backward).empty());
  EXPECT_EQ(names_of(stage_operators(config, upper, {}, Direction::forward)).front(), "layers.2.attention_norm");
}

TEST(StageOperators, PredecessorsComeEarlierAndEveryOperatorButTheLastIsUsed) {
  const ModelConfig config = small_model();
  for (int mask = 1; mask < 128; ++mask) {
    std::vector<AdapterShape> adapters;
    for (int p = 0; p < projection_count; ++p) {
      if (mask >> p & 1) adapters.push_back({.layer = 1, .projection = static_cast<Projection>(p), .width = 4});
    }
    for (Direction direction : {Direction::forward, Direction::backward, Direction::evaluate}) {
      const std::vector<Operator> list = stage_operators(config, whole_model(config), adapters, direction);
      std::set<int32_t> used;
      for (size_t i = 0; i < list.size(); ++i) {
        EXPECT_EQ(list[i].predecessors.empty(), i == 0) << list[i].name();
        for (int32_t predecessor : list[i].predecessors) {
          EXPECT_LT(predecessor, static_cast<int32_t>(i));
          used.insert(predecessor);
        }
      }
      for (size_t i = 0; i + 1 < list.size(); ++i) {
        const bool result = list[i].name().find("adapter_gradient") != std::string::npos;
        EXPECT_EQ(used.count(static_cast<int32_t>(i)), result ? 0u : 1u) << list[i].name();
      }
    }
  }
}

TEST(StageOperators, KeepNothingBelowTheLowestAdapterOrUnderEvaluation) {
  const ModelConfig config = small_model();
  const StageShape stage = whole_model(config);
  const std::vector<AdapterShape> adapters = {{.layer = 1, .projection = Projection::up, .width = 4}};
  for (Direction direction : {Direction::forward, Direction::backward, Direction::evaluate}) {
    for (const Operator& op : stage_operators(config, stage, adapters, direction)) {
      EXPECT_EQ(op.keeps, direction == Direction::forward && op.layer >= 1) << op.name();
      const MicrobatchCounts counts{.tokens = 10, .job_tokens = {10}};
      if (!op.keeps) {
        EXPECT_EQ(saved_bytes(config, stage, op, counts, 2), 0);
      }
    }
  }
}

TEST(StageOperators, CommunicateAtTheCutsUnderTensorParallelism) {
  const ModelConfig config = small_model();
  StageShape stage = whole_model(config);
  stage.tensor_parallel = 2;
  for (Direction direction : {Direction::forward, Direction::backward}) {
    for (const Operator& op : stage_operators(config, stage, lora_everywhere(config, 0, 4), direction)) {
      const bool cut = op.kind == OperatorKind::o_proj || op.kind == OperatorKind::down_proj ||
                       op.kind == OperatorKind::gate_up_proj_backward || op.kind == OperatorKind::qkv_proj_backward;
      EXPECT_EQ(op.communicates, cut) << op.name();
    }
  }
  stage.tensor_parallel = 3;
  EXPECT_THROW(stage_operators(config, stage, {}, Direction::forward), InternalError);
}

double flops_of(const ModelConfig& config, const std::vector<AdapterShape>& adapters, const MicrobatchCounts& counts,
                Direction direction) {
  const StageShape stage = whole_model(config);
  return total_cost(config, stage, stage_operators(config, stage, adapters, direction), counts, 2).flops;
}

TEST(OperatorCost, AdaptersAddSixOperationsPerParameterAndToken) {
  const ModelConfig config = small_model();
  const MicrobatchCounts counts{.tokens = 100, .labelled = 0, .attention_pairs = 0, .job_tokens = {100}};
  const std::vector<AdapterShape> with = lora_everywhere(config, 0, 4);
  std::vector<AdapterShape> without = with;
  for (AdapterShape& adapter : without) adapter.job = 1;  // a job without tokens: the same operators, no adapter work
  double parameters = 0, lowest_input = 0;
  for (const AdapterShape& adapter : with) {
    const ProjectionSize size = projection_size(config, adapter.projection);
    parameters += 4.0 * static_cast<double>(size.in + size.out);
    if (adapter.layer == 0 && adapter.projection <= Projection::v) lowest_input += 4.0 * static_cast<double>(size.in);
  }
  double added = 0;
  for (Direction direction : {Direction::forward, Direction::backward}) {
    added += flops_of(config, with, counts, direction) - flops_of(config, without, counts, direction);
  }
  // Below the lowest adapter no input gradient is made: g·A is left out there.
  EXPECT_DOUBLE_EQ(added, 100 * (6 * parameters - 2 * lowest_input));
}

TEST(OperatorCost, FrozenProductsAreFourOperationsPerParameterAndToken) {
  // 4·P_linear + 4·P_head + 6·P_adapter with rank-16 LoRA on everything and every token labelled.
  const ModelConfig config = smollm2_135m();
  const MicrobatchCounts counts{.tokens = 1000, .labelled = 1000, .job_tokens = {1000}};
  const std::vector<AdapterShape> adapters = lora_everywhere(config, 0, 16);
  const double flops =
      flops_of(config, adapters, counts, Direction::forward) + flops_of(config, adapters, counts, Direction::backward);
  const double p_linear = 30.0 * (576 * 960 + 576 * 576 + 3 * 576 * 1536), p_head = 576.0 * 49152;
  const double p_adapter = 16 * 30.0 * (2 * 576 + 576 + 3 * (576 + 1536) + 2 * (576 + 192));
  EXPECT_NEAR(flops / 1000 / (4 * p_linear + 4 * p_head + 6 * p_adapter), 1, 0.01);
}

TEST(OperatorCost, AttentionBackwardIsTwoAndAHalfTimesItsForward) {
  const ModelConfig config = small_model();
  const StageShape stage = whole_model(config);
  const MicrobatchCounts counts{.tokens = 10, .attention_pairs = 55, .job_tokens = {10}};
  const double forward = operator_cost(config, stage, {.kind = OperatorKind::attention, .layer = 0}, counts, 4).flops;
  EXPECT_DOUBLE_EQ(forward, 4.0 * 55 * 4 * 16);
  EXPECT_DOUBLE_EQ(
      operator_cost(config, stage, {.kind = OperatorKind::attention_backward, .layer = 0}, counts, 4).flops,
      2.5 * forward);
}

TEST(OperatorCost, SavedBytesAreTheTensorsThatBackwardReads) {
  const ModelConfig config = small_model();  // hidden 64, 4 heads of 16, 2 kv heads, intermediate 96
  const StageShape stage = whole_model(config);
  const MicrobatchCounts counts{.tokens = 10, .job_tokens = {6, 4}};
  const auto saved = [&](OperatorKind kind, int64_t layer, std::vector<AdapterShape> adapters, int64_t e) {
    const Operator op{.kind = kind, .layer = layer, .adapters = std::move(adapters), .keeps = true};
    return operator_cost(config, stage, op, counts, e).bytes_saved;
  };
  EXPECT_EQ(saved(OperatorKind::attention_norm, 0, {}, 2), 10 * (64 * 2 + 4));
  EXPECT_EQ(saved(OperatorKind::attention_norm, 0, {}, 8), 10 * (64 * 8 + 8));
  EXPECT_EQ(saved(OperatorKind::qkv_proj, 0, {}, 2), 10 * 128 * 2);
  EXPECT_EQ(saved(OperatorKind::attention, 0, {}, 2), 10 * (64 * 2 + 4 * 4));
  EXPECT_EQ(saved(OperatorKind::gate_up_proj, 0, {}, 2), 10 * 2 * 96 * 2);
  EXPECT_EQ(saved(OperatorKind::swiglu, 0, {}, 2), 0);
  EXPECT_EQ(saved(OperatorKind::down_proj, 0, {}, 2), 0);
  EXPECT_EQ(saved(OperatorKind::down_proj, 2, {}, 2), 10 * 64 * 4);  // the stream
  EXPECT_EQ(saved(OperatorKind::qkv_proj_backward, 2, {}, 2), 0);
  const AdapterShape lora{.job = 1, .projection = Projection::k, .width = 33};
  EXPECT_EQ(saved(OperatorKind::qkv_proj, 0, {lora}, 2), 10 * 128 * 2 + 4 * 64 * 2);
  EXPECT_EQ(saved(OperatorKind::qkv_proj, 0, {lora}, 8), 10 * 128 * 8 + 4 * 33 * 8);
  const AdapterShape bottleneck{
      .job = 0, .method = AdapterMethod::bottleneck, .projection = Projection::o, .width = 8};
  EXPECT_EQ(saved(OperatorKind::o_proj, 0, {bottleneck}, 4), 6 * (64 + 32) * 4);
  const AdapterShape diff{.job = 0, .method = AdapterMethod::diff_pruning, .projection = Projection::o, .entries = 99};
  EXPECT_EQ(saved(OperatorKind::o_proj, 0, {diff}, 4), 0);
}

TEST(CountMicrobatch, CountsCausalPairsOfWholeRowsChunksAndPads) {
  Microbatch microbatch;
  microbatch.atoms = {{.job = 0, .index = 1, .segments = {{0, 256, 4, 0, 260}, {1, 0, 2, 1, 2}}},
                      {.job = 3, .index = 0, .segments = {{0, 0, 5, 0, 5}}}};
  const MicrobatchCounts counts = count_microbatch(microbatch, 7);
  EXPECT_EQ(counts.tokens, 12);
  EXPECT_EQ(counts.labelled, 7 + 1) << "the pad enters the head, too";
  EXPECT_EQ(counts.attention_pairs, (4 * 256 + 10) + 6 + 15);
  EXPECT_EQ(counts.job_tokens, (std::vector<int64_t>{7, 0, 0, 5}));
}

TEST(CountMicrobatch, PairsOfPackedRowsAreThoseOfTheirSequencesWhateverTheChunks) {  // MX-23
  const std::vector<int64_t> lengths{144, 64, 48};  // one packed row of 256 in chunks of 256, two rows in smaller ones
  int64_t expected = 0;
  for (const int64_t length : lengths) expected += length * (length + 1) / 2;
  for (const int64_t chunk_size : {16, 64, 256}) {
    const StepPlan plan = plan_step(std::vector<BatchShape>{{0, 0, lengths, 0}},
                                    {.layout = Layout::chunked, .token_budget = 256, .chunk_size = chunk_size});
    int64_t pairs = 0, tokens = 0;
    for (const Microbatch& microbatch : plan.microbatches) {
      const MicrobatchCounts counts = count_microbatch(microbatch, 0);
      pairs += counts.attention_pairs;
      tokens += counts.tokens;
    }
    EXPECT_EQ(tokens, 256) << "chunks of " << chunk_size;
    EXPECT_EQ(pairs, expected) << "chunks of " << chunk_size;
  }
}

TEST(LaunchModel, FusedCallsDoNotGrowWithTheJobs) {
  const ModelConfig config = small_model();
  const StageShape stage = whole_model(config);
  const auto calls_of = [&](int32_t first_job, int32_t last_job) {
    std::vector<AdapterShape> adapters;
    MicrobatchCounts counts{.labelled = 1};
    counts.job_tokens.resize(static_cast<size_t>(last_job), 0);
    for (int32_t job = first_job; job < last_job; ++job) {
      for (const AdapterShape& adapter : lora_everywhere(config, job, 4 + job)) adapters.push_back(adapter);
      counts.job_tokens[static_cast<size_t>(job)] = 5;
      counts.tokens += 5;
    }
    LaunchCount calls;
    for (Direction direction : {Direction::forward, Direction::backward}) {
      calls += count_launches(config, stage, stage_operators(config, stage, adapters, direction), counts);
    }
    return calls;
  };
  const LaunchCount one = calls_of(0, 1);
  const LaunchModel model{.base_calls = one.frozen, .adapter_calls = one.adapter};
  EXPECT_EQ(one.frozen, 4 * 3 + 2 + 4 * 3 - 1);          // all but qkv's input gradient in the lowest layer; the head
  EXPECT_EQ(one.adapter, 4 * 3 + (4 * 3 - 1) + 4 * 3);   // forward, input gradient, adapter gradient
  for (int32_t jobs = 1; jobs <= 8; ++jobs) {
    EXPECT_EQ(calls_of(0, jobs).total(), model.grouped(1));
    LaunchCount separate;
    for (int32_t job = 0; job < jobs; ++job) separate += calls_of(job, job + 1);
    EXPECT_EQ(separate.total(), model.separate(jobs));
  }
}

TEST(LaunchModel, SavesWhatThePaperCounts) {  // mLoRA §3.3.2 by hand: 4·(25 + 35), 25 + 4·35, 3·25 / 240
  const LaunchModel model{.base_calls = 25, .adapter_calls = 35};
  EXPECT_EQ(model.separate(4), 240);
  EXPECT_EQ(model.batch_lora(4), 165);
  EXPECT_EQ(model.batch_lora_saving(4), 0.3125);
  EXPECT_EQ(model.grouped(1), 60);
  EXPECT_EQ(model.grouped(3), 130);
}

TEST(LaunchModel, EachMethodPresentAddsItsOwnCalls) {
  const ModelConfig config = small_model();
  const StageShape stage = whole_model(config);
  std::vector<AdapterShape> adapters;
  MicrobatchCounts counts{.tokens = 9, .labelled = 1, .job_tokens = {3, 3, 3}};
  for (int32_t job = 0; job < 3; ++job) {
    for (AdapterShape adapter : lora_everywhere(config, job, 4)) {
      adapter.method = static_cast<AdapterMethod>(job);
      adapters.push_back(adapter);
    }
  }
  const LaunchCount forward =
      count_launches(config, stage, stage_operators(config, stage, adapters, Direction::forward), counts);
  EXPECT_EQ(forward.frozen, 4 * 3);
  EXPECT_EQ(forward.adapter, 3 * 4 * 3);
}

TEST(OperatorCost, OfAModelWithoutAGateHasOneProductLessInItsFeedForwardBlock) {
  ModelConfig gated = small_model(), plain = small_model();
  plain.gated = false;
  const StageShape stage{.first_layer = 0, .last_layer = gated.layer_count};
  const MicrobatchCounts counts{.tokens = 128, .labelled = 0, .attention_pairs = 128 * 129 / 2, .job_tokens = {128}};
  const AdapterShape adapter{.width = 8};
  const auto total = [&](const ModelConfig& config, Direction direction) {
    return total_cost(config, stage, stage_operators(config, stage, {adapter}, direction), counts, 2);
  };
  const double product = 2.0 * 128 * static_cast<double>(gated.hidden_size * gated.intermediate_size);
  const auto layers = static_cast<double>(gated.layer_count);
  EXPECT_EQ(total(gated, Direction::forward).flops - total(plain, Direction::forward).flops, layers * product);
  EXPECT_EQ(total(gated, Direction::backward).flops - total(plain, Direction::backward).flops, layers * product);
  EXPECT_EQ(total(gated, Direction::forward).bytes_saved - total(plain, Direction::forward).bytes_saved,
            gated.layer_count * 128 * gated.intermediate_size * 2);
}

}  // namespace
}  // namespace cotune
