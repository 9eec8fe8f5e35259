// What the engine executes, counts and keeps is what schedule/operators.h lists.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "engine/random_job.h"
#include "engine/reference_job.h"
#include "ops/backend.h"
#include "schedule/launch_model.h"
#include "schedule/operators.h"

namespace cotune::testing {
namespace {

std::vector<AdapterShape> shapes_of(const std::vector<Adapter*>& adapters) {
  std::vector<AdapterShape> shapes;
  for (size_t job = 0; job < adapters.size(); ++job) {
    for (const AdaptedModule& module : adapters[job]->setup().modules) {
      shapes.push_back({static_cast<int32_t>(job), adapters[job]->method(), module.layer, module.projection, module.r, 0});
    }
  }
  return shapes;
}

using Execution = std::vector<std::pair<OperatorKind, int64_t>>;

Execution executions_of(const std::vector<Operator>& list) {
  Execution execution;
  for (const Operator& op : list) execution.emplace_back(op.kind, op.layer);
  return execution;
}

/// Columns of what an operator made; 0 where it leaves nothing to look at.
int64_t columns_after(const Operator& op, const MicrobatchState& state) {
  const auto columns = [](const at::Tensor& tensor) { return tensor.defined() ? tensor.size(1) : 0; };
  switch (op.kind) {
    case OperatorKind::qkv_proj: return columns(state.layers[static_cast<size_t>(op.layer)].qkv);
    case OperatorKind::gate_up_proj: return columns(state.layers[static_cast<size_t>(op.layer)].gate_up);
    case OperatorKind::o_proj:
    case OperatorKind::down_proj: return columns(state.hidden);
    case OperatorKind::qkv_proj_backward:
    case OperatorKind::gate_up_proj_backward:
    case OperatorKind::o_proj_backward:
    case OperatorKind::down_proj_backward: return columns(state.d_x);
    default: return 0;
  }
}

int64_t columns_listed(const Operator& op, const ModelConfig& config) {
  const int64_t query = config.query_size(), kv = config.key_value_size();
  switch (op.kind) {
    case OperatorKind::qkv_proj: return query + 2 * kv;
    case OperatorKind::gate_up_proj: return 2 * config.intermediate_size;
    case OperatorKind::o_proj:
    case OperatorKind::down_proj:
    case OperatorKind::qkv_proj_backward:
    case OperatorKind::gate_up_proj_backward: return config.hidden_size;
    case OperatorKind::o_proj_backward: return query;
    case OperatorKind::down_proj_backward: return config.intermediate_size;
    default: return 0;
  }
}

struct Recorded {
  Execution execution;
  std::vector<LaunchCount> launches;
};

/// Runs a round with everything in one microbatch, recording.
Recorded record(Interpreter& interpreter, const std::vector<const RandomJob*>& jobs, const std::vector<Adapter*>& adapters,
                RoundPurpose purpose) {
  Recorded recorded;
  Stage& stage = interpreter.stage();
  const ModelConfig& config = stage.backbone().config();
  CallCounts before = stage.calls();
  stage.on_operator = [&](const Operator& op, const MicrobatchState& state, double) {
    recorded.execution.emplace_back(op.kind, op.layer);
    recorded.launches.push_back({stage.calls().frozen - before.frozen, stage.calls().adapter - before.adapter});
    before = stage.calls();
    EXPECT_EQ(columns_after(op, state), columns_listed(op, config)) << op.name();
  };
  std::vector<Batch> batches;
  for (const RandomJob* job : jobs) batches.push_back(job->batch(0, config.vocabulary_size));
  std::vector<JobRound> rounds;
  for (size_t i = 0; i < jobs.size(); ++i) {
    JobRound round;
    round.job = static_cast<int32_t>(i);
    round.adapter = adapters[i];
    round.batch = &batches[i];
    round.purpose = purpose;
    rounds.push_back(round);
  }
  run_round(interpreter, rounds, {.sharing = Sharing::batch_all});
  stage.on_operator = nullptr;
  return recorded;
}

std::vector<RandomJob> one_job_of_every_kind() {
  std::vector<RandomJob> jobs{lora_job("lora", 1, 4, 0.2, {"all-linear"}, {9, 4}),
                              bottleneck_job("bottleneck", 2, 5, Activation::relu, {9, 4}),
                              diff_pruning_job("diff", 3, 0.02, {9, 4})};
  for (const char* target : {"k_proj", "o_proj", "up_proj", "down_proj"}) {
    jobs.push_back(lora_job(target, 4, 3, 0.0, {target}, {6}));
    jobs.push_back(lora_job(std::string("upper ") + target, 4, 3, 0.1, {target}, {6}));
    jobs.back().adapter.layers_to_transform = {1};
    jobs.push_back(diff_pruning_job(std::string("diff ") + target, 5, 0.02, {6}));
    jobs.back().adapter.target_modules = {target};
  }
  jobs.push_back(bottleneck_job("upper bottleneck", 2, 5, Activation::relu, {9, 4}));
  jobs.back().adapter.layers_to_transform = {1};
  return jobs;
}

class OperatorList : public ::testing::TestWithParam<std::string> {};

TEST_P(OperatorList, IsWhatIsExecutedForEveryMethodAndDirection) {
  const auto backbone = tiny_backbone(GetParam(), at::kDouble);
  const ModelConfig& config = backbone->config();
  const StageShape stage{.last_layer = config.layer_count};
  Interpreter interpreter(backbone);
  for (const RandomJob& job : one_job_of_every_kind()) {
    const auto adapter = job.make_adapter(config, at::kDouble);
    select_alone(interpreter, job, *adapter);
    const auto listed = [&](Direction direction) {
      return executions_of(stage_operators(config, stage, shapes_of({adapter.get()}), direction));
    };
    Execution expected = listed(Direction::forward);
    const Execution backward = listed(Direction::backward);
    expected.insert(expected.end(), backward.begin(), backward.end());
    EXPECT_EQ(record(interpreter, {&job}, {adapter.get()}, RoundPurpose::select).execution, expected) << job.name;
    EXPECT_EQ(record(interpreter, {&job}, {adapter.get()}, RoundPurpose::evaluate).execution, listed(Direction::evaluate))
        << job.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, OperatorList, ::testing::Values("llama2", "llama3", "mistral", "qwen2", "smollm2"));

TEST(Launches, AreOneFrozenProductAnOperatorAndOneAdapterCallAMethodWhateverTheJobs) {
  const auto backbone = tiny_backbone("llama3", at::kDouble);
  const ModelConfig& config = backbone->config();
  const StageShape stage{.last_layer = config.layer_count};
  Interpreter interpreter(backbone);
  const std::vector<RandomJob> kinds = one_job_of_every_kind();
  for (const size_t copies : {1, 2, 5}) {
    std::vector<RandomJob> jobs;
    for (size_t copy = 0; copy < copies; ++copy) {
      for (size_t kind = 0; kind < 3; ++kind) jobs.push_back(kinds[kind]);
    }
    std::vector<const RandomJob*> job_pointers;
    std::vector<std::unique_ptr<Adapter>> adapters;
    std::vector<Adapter*> pointers;
    for (const RandomJob& job : jobs) {
      job_pointers.push_back(&job);
      adapters.push_back(job.make_adapter(config, at::kDouble));
      select_alone(interpreter, job, *adapters.back());
      pointers.push_back(adapters.back().get());
    }
    std::vector<Operator> list = stage_operators(config, stage, shapes_of(pointers), Direction::forward);
    const std::vector<Operator> backward = stage_operators(config, stage, shapes_of(pointers), Direction::backward);
    list.insert(list.end(), backward.begin(), backward.end());
    const MicrobatchCounts counts{.tokens = 1, .labelled = 1, .job_tokens = std::vector<int64_t>(jobs.size(), 1)};
    const Recorded recorded = record(interpreter, job_pointers, pointers, RoundPurpose::select);
    ASSERT_EQ(recorded.launches.size(), list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      const LaunchCount expected = count_launches(config, stage, {list[i]}, counts);
      EXPECT_EQ(recorded.launches[i].frozen, expected.frozen) << list[i].name();
      EXPECT_EQ(recorded.launches[i].adapter, expected.adapter) << list[i].name();
      if (!list[i].adapters.empty()) {
        const bool both_ends = list[i].kind == OperatorKind::o_proj || list[i].kind == OperatorKind::down_proj;
        const bool gradient = list[i].name().find("adapter_gradient") != std::string::npos;
        EXPECT_EQ(recorded.launches[i].frozen, gradient ? 0 : 1) << list[i].name();
        if (both_ends) {
          EXPECT_EQ(recorded.launches[i].adapter, 3) << list[i].name();
        }
      }
    }
  }
}

class KeptBytes : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(KeptBytes, AreWhatTheListSaysForEveryMethod) {
  if (GetParam() != at::kDouble && kernel_isa(GetParam(), test_device()) == kernels::Isa::none) {
    GTEST_SKIP() << "the portable path pads no ranks";
  }
  for (const std::string family : {"llama3", "smollm2", "qwen2", "random"}) {
    const auto backbone = family == "random" ? random_backbone(kernel_friendly_config(3), GetParam())
                                             : tiny_backbone(family, GetParam());
    const ModelConfig& config = backbone->config();
    const StageShape shape{.last_layer = config.layer_count};
    Interpreter interpreter(backbone);
    for (const RandomJob& job : one_job_of_every_kind()) {
      const auto adapter = job.make_adapter(config, GetParam());
      select_alone(interpreter, job, *adapter);
      Stage& stage = interpreter.stage();
      // The head is the first operator of the backward list: all that forward keeps is there when it has run.
      int64_t kept = -1, expected = 0;
      std::vector<int64_t> kept_by_layer, expected_by_layer(static_cast<size_t>(config.layer_count));
      MicrobatchCounts counts;
      stage.on_operator = [&](const Operator& op, const MicrobatchState& state, double) {
        if (op.kind != OperatorKind::head) return;
        kept = static_cast<int64_t>(state.final_hidden.nbytes());
        for (const LayerRecord& record : state.layers) {
          kept_by_layer.push_back(record.bytes());
          kept += record.bytes();
        }
        counts = {.tokens = state.token_count(), .labelled = state.labels.size(0), .job_tokens = {state.token_count()}};
      };
      gradients_of(interpreter, {&job}, {adapter.get()}, {});
      stage.on_operator = nullptr;
      const auto element = static_cast<int64_t>(c10::elementSize(GetParam()));
      for (const Operator& op : stage_operators(config, shape, shapes_of({adapter.get()}), Direction::forward)) {
        const int64_t bytes = saved_bytes(config, shape, op, counts, element);
        expected += bytes;
        const bool head_input = op.kind == OperatorKind::down_proj && op.layer + 1 == config.layer_count;
        if (op.layer < 0) continue;
        expected_by_layer[static_cast<size_t>(op.layer)] +=
            bytes - (head_input && op.keeps ? counts.tokens * config.hidden_size * element : 0);
      }
      EXPECT_EQ(kept_by_layer, expected_by_layer) << family << ", " << job.name;
      EXPECT_EQ(kept, expected) << family << ", " << job.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, KeptBytes, ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16));

TEST(KeptBytes, UnderRecomputationAreTheInputsOfAdaptedLayers) {
  const auto backbone = random_backbone(kernel_friendly_config(3), at::kDouble);
  Interpreter interpreter(backbone);
  RandomJob job = lora_job("upper", 1, 4, 0.1, {"all-linear"}, {40, 9});
  job.adapter.layers_to_transform = {1, 2};
  const auto adapter = job.make_adapter(backbone->config(), at::kDouble);
  bool seen = false;
  interpreter.stage().on_operator = [&](const Operator& op, const MicrobatchState& state, double) {
    if (op.kind != OperatorKind::head) return;
    const int64_t input = state.token_count() * backbone->config().hidden_size * 8;
    EXPECT_EQ(state.layers[0].bytes(), 0);
    EXPECT_EQ(state.layers[1].bytes(), input);
    EXPECT_EQ(state.layers[2].bytes(), input);
    seen = true;
  };
  gradients_of(interpreter, {&job}, {adapter.get()}, {.recompute = true});
  interpreter.stage().on_operator = nullptr;
  EXPECT_TRUE(seen);
}

}  // namespace
}  // namespace cotune::testing
