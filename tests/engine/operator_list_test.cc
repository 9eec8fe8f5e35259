// What the engine executes, counts and keeps is what schedule/operators.h lists.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "engine/random_job.h"
#include "engine/reference_job.h"
#include "ops/backend.h"
#include "ops/call_counts.h"
#include "schedule/launch_model.h"
#include "schedule/operator_cost.h"
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

struct Recorded {
  Execution execution;
  std::vector<LaunchCount> launches;  ///< frozen products, and methods dispatched to
  std::vector<CallCounts> calls;      ///< what the operators called
};

/// Runs a round, with everything in one microbatch unless jobs share less, recording.
Recorded record(Interpreter& interpreter, const std::vector<const RandomJob*>& jobs, const std::vector<Adapter*>& adapters,
                RoundPurpose purpose, Sharing sharing = Sharing::batch_all) {
  Recorded recorded;
  Stage& stage = interpreter.stage();
  CallCounts before = call_counts();
  int64_t dispatches = stage.dispatches();
  stage.on_operator = [&](const Operator& op, const MicrobatchState&, double) {
    recorded.execution.emplace_back(op.kind, op.layer);
    recorded.calls.push_back(call_counts() - before);
    recorded.launches.push_back({recorded.calls.back().frozen, stage.dispatches() - dispatches});
    dispatches = stage.dispatches();
    before = call_counts();
  };
  std::vector<Batch> batches;
  for (const RandomJob* job : jobs) batches.push_back(job->batch(0, stage.backbone().config().vocabulary_size));
  std::vector<JobRound> rounds;
  for (size_t i = 0; i < jobs.size(); ++i) {
    JobRound round;
    round.job = static_cast<int32_t>(i);
    round.adapter = adapters[i];
    round.batch = &batches[i];
    round.purpose = purpose;
    rounds.push_back(round);
  }
  run_round(interpreter, rounds, {.sharing = sharing});
  stage.on_operator = nullptr;
  return recorded;
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

INSTANTIATE_TEST_SUITE_P(Families, OperatorList, ::testing::ValuesIn(tiny_families));

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

enum class Kind { lora, dropout, bottleneck, diff_pruning };

/// The i-th job of a kind: ranks, functions and lengths differ; rows of one atom and of two. On a device an activation takes
/// calls by the functions that its jobs name (adapter/activation.h): there all name one.
RandomJob job_of(Kind kind, int64_t i) {
  const std::vector<int64_t> rows = i % 3 == 1 ? std::vector<int64_t>{12} : i % 3 == 2 ? std::vector<int64_t>{5, 9 + i} : std::vector<int64_t>{258 + i, 4};
  const auto seed = static_cast<uint64_t>(10 + i);
  switch (kind) {
    case Kind::bottleneck:
      return bottleneck_job("bottleneck", seed, 3 + 7 * i, i % 2 == 0 || !test_device().is_cpu() ? Activation::gelu : Activation::relu,
                            rows);
    case Kind::diff_pruning: return diff_pruning_job("diff", seed, 0.01 + 0.003 * static_cast<double>(i), rows);
    case Kind::lora:
    case Kind::dropout: break;
  }
  RandomJob job = lora_job("lora", seed, 3 + 6 * i, kind == Kind::dropout ? 0.1 + 0.05 * static_cast<double>(i) : 0.0, {"all-linear"}, rows);
  job.adapter.use_rslora = i % 2 == 1;
  if (i % 4 == 3) job.adapter.target_modules = {"q_proj", "v_proj", "up_proj", "down_proj"};
  return job;
}

bool is_forward(OperatorKind kind) {
  return kind == OperatorKind::qkv_proj || kind == OperatorKind::o_proj || kind == OperatorKind::gate_up_proj ||
         kind == OperatorKind::down_proj;
}

int64_t projections_of(const Operator& op) {
  const std::string name = op.name();
  return name.find("qkv") != std::string::npos ? 3 : name.find("gate_up") != std::string::npos ? 2 : 1;
}

/// Calls that jobs of one kind make at an operator with so many projections, all of them adapted. LoRA shrinks once forward,
/// once per projection backward (their columns differ), and forms the gradient of all A in one call and of B in one per
/// projection; its expansions are inside the frozen product of our kernels, and a call per projection beside one of ATen's.
/// Dropout adds the mask, forward and for the gradient, and takes its expansion out of the product.
int64_t calls_of(Kind kind, const Operator& op, int64_t projections, bool aten) {
  const bool gradient = op.name().find("adapter_gradient") != std::string::npos;
  const int64_t dispatch = gradient && op.without_input_gradient ? 1 : 0;  // what no backward product has prepared
  switch (kind) {
    case Kind::lora:
    case Kind::dropout: {
      const int64_t drops = kind == Kind::dropout ? 1 : 0;
      if (is_forward(op.kind)) return 1 + drops + (aten ? projections : 0);
      if (gradient) return 1 + drops + projections + dispatch * projections;
      return projections + (aten ? projections : drops);
    }
    case Kind::bottleneck: return (gradient ? 5 : 3) + 3 * dispatch;  // shrink, f, expand; f, two weights, two biases
    case Kind::diff_pruning: return 1;
  }
  return 0;
}

struct CallCase {
  std::string name;
  at::ScalarType compute;
  bool portable;
};

class Calls : public ::testing::TestWithParam<CallCase> {
 protected:
  void SetUp() override {
    if (GetParam().portable) {
      portable_.emplace();
    } else if (GetParam().compute != at::kDouble && kernel_isa(GetParam().compute, test_device()) == kernels::Isa::none) {
      GTEST_SKIP() << "this device lacks our kernels";
    }
    use_model(kernel_friendly_config(1));
  }
  bool aten() const { return GetParam().portable || GetParam().compute == at::kDouble; }

  /// A job joins; its adapter trains.
  void join(RandomJob job) {
    jobs_.push_back(std::make_unique<RandomJob>(std::move(job)));
    adapters_.push_back(jobs_.back()->make_adapter(backbone_->config(), GetParam().compute));
    select_alone(*interpreter_, *jobs_.back(), *adapters_.back());
  }
  void leave_all() {
    jobs_.clear();
    adapters_.clear();
  }

  /// The calls of a round of all jobs in one microbatch, operator by operator.
  std::vector<CallCounts> calls_of_round() { return recorded_round(Sharing::batch_all).calls; }

  Recorded recorded_round(Sharing sharing) {
    std::vector<const RandomJob*> jobs;
    std::vector<Adapter*> adapters;
    for (const auto& job : jobs_) jobs.push_back(job.get());
    for (const auto& adapter : adapters_) adapters.push_back(adapter.get());
    const StageShape stage{.last_layer = backbone_->config().layer_count};
    list_ = stage_operators(backbone_->config(), stage, shapes_of(adapters), Direction::forward);
    const std::vector<Operator> backward = stage_operators(backbone_->config(), stage, shapes_of(adapters), Direction::backward);
    list_.insert(list_.end(), backward.begin(), backward.end());
    return record(*interpreter_, jobs, adapters, RoundPurpose::select, sharing);
  }

  void use_model(const ModelConfig& config) {
    leave_all();
    backbone_ = random_backbone(config, GetParam().compute);
    interpreter_ = std::make_unique<Interpreter>(backbone_);
  }

  std::optional<PortableKernels> portable_;
  std::shared_ptr<const Backbone> backbone_;
  std::unique_ptr<Interpreter> interpreter_;
  std::vector<std::unique_ptr<RandomJob>> jobs_;
  std::vector<std::unique_ptr<Adapter>> adapters_;
  /// The round's calls are those of one job of the kind, whatever `k` is; on_aten: on the path of ATen.
  void expect_calls_of_one(Kind kind, int64_t k, bool on_aten) {
    const std::vector<CallCounts> calls = calls_of_round();
    ASSERT_EQ(calls.size(), list_.size());
    for (size_t i = 0; i < list_.size(); ++i) {
      const Operator& op = list_[i];
      const std::string name = op.name();
      const bool product = is_forward(op.kind) || name.find("proj_backward") != std::string::npos;
      const bool adapts = (product || name.find("adapter_gradient") != std::string::npos) && !op.adapters.empty();
      const int64_t expected = adapts ? calls_of(kind, op, projections_of(op), on_aten) : 0;
      EXPECT_EQ(calls[i].frozen, op.kind == OperatorKind::head ? 2 : product ? 1 : 0) << name << ", " << k << " jobs";
      EXPECT_EQ(calls[i].adapter, expected) << name << ", " << k << " jobs of kind " << static_cast<int>(kind);
    }
  }

  std::vector<Operator> list_;  ///< of the last round
};

TEST_P(Calls, OfEverySiteAndKindDoNotGrowWithTheJobs) {  // ML-16, ML-17, ML-18
  for (const Kind kind : {Kind::lora, Kind::dropout, Kind::bottleneck, Kind::diff_pruning}) {
    leave_all();
    for (int64_t k = 1; k <= 8; ++k) {
      join(job_of(kind, k - 1));
      expect_calls_of_one(kind, k, aten());
    }
  }
}

TEST_P(Calls, OfAMixAreThoseOfItsKindsHoweverManyJobsItHas) {
  std::vector<CallCounts> of_one_of_each;
  for (int64_t copy = 0; copy < 3; ++copy) {
    for (const Kind kind : {Kind::bottleneck, Kind::lora, Kind::diff_pruning, Kind::dropout}) join(job_of(kind, copy));
    const std::vector<CallCounts> calls = calls_of_round();
    if (copy == 0) of_one_of_each = calls;
    EXPECT_TRUE(calls == of_one_of_each) << jobs_.size() << " jobs";
  }
}

/// What a round called in all.
struct Totals {
  LaunchCount launches;
  CallCounts calls;
};

Totals totals_of(const Recorded& recorded) {
  Totals totals;
  for (const LaunchCount& launches : recorded.launches) totals.launches += launches;
  for (const CallCounts& calls : recorded.calls) {
    totals.calls.frozen += calls.frozen;
    totals.calls.adapter += calls.adapter;
  }
  return totals;
}

// k like jobs, one microbatch each, launch k(α+β) times, counted while they run; together α+β, whatever k (ML-20).
TEST_P(Calls, OfLikeJobsApartAreThoseOfOneTimesTheJobsAndTogetherThoseOfOne) {
  for (const Kind kind : {Kind::lora, Kind::dropout, Kind::bottleneck, Kind::diff_pruning}) {
    leave_all();
    Totals one;
    for (int64_t k = 1; k <= 8; ++k) {
      RandomJob job = job_of(kind, k - 1);
      job.row_lengths = {7 + k, 4};
      if (kind == Kind::lora || kind == Kind::dropout) job.adapter.target_modules = {"all-linear"};
      join(job);
      const Totals together = totals_of(recorded_round(Sharing::batch_all)), apart = totals_of(recorded_round(Sharing::separate));
      if (k == 1) one = together;
      const std::string name = std::to_string(k) + " jobs of kind " + std::to_string(static_cast<int>(kind));
      const LaunchModel model{.base_calls = one.launches.frozen, .adapter_calls = one.launches.adapter};
      EXPECT_GT(model.adapter_calls, 0);
      EXPECT_EQ(apart.launches.frozen, k * model.base_calls) << name;
      EXPECT_EQ(apart.launches.adapter, k * model.adapter_calls) << name;
      EXPECT_EQ(apart.launches.total(), model.separate(k)) << name;
      EXPECT_EQ(together.launches.total(), model.grouped(1)) << name;
      // The paper's BatchLoRA: frozen products as together, adapters as apart; what it saves is what was counted.
      const int64_t paper = together.launches.frozen + apart.launches.adapter;
      EXPECT_EQ(paper, model.batch_lora(k)) << name;
      EXPECT_DOUBLE_EQ(1 - static_cast<double>(paper) / static_cast<double>(apart.launches.total()), model.batch_lora_saving(k)) << name;
      // And what is called inside the dispatches.
      EXPECT_TRUE(together.calls == one.calls) << name;
      EXPECT_EQ(apart.calls.frozen, k * one.calls.frozen) << name;
      EXPECT_EQ(apart.calls.adapter, k * one.calls.adapter) << name;
    }
  }
}

TEST_P(Calls, OfOddWidthsAreThoseOfAtenAndDoNotGrowWithTheJobsEither) {
  ModelConfig config = kernel_friendly_config(1);
  config.head_dim = 16;  // query 48, key and value 16
  config.hidden_size = 48;
  config.intermediate_size = 80;
  use_model(config);
  for (const Kind kind : {Kind::lora, Kind::dropout, Kind::bottleneck, Kind::diff_pruning}) {
    leave_all();
    for (int64_t k = 1; k <= 8; ++k) {
      RandomJob job = job_of(kind, k - 1);
      if (kind == Kind::lora || kind == Kind::dropout) job.adapter.target_modules = {"all-linear"};
      join(job);
      expect_calls_of_one(kind, k, true);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, Calls,
                         ::testing::Values(CallCase{"f64_aten", at::kDouble, false}, CallCase{"f32_kernels", at::kFloat, false},
                                           CallCase{"bf16_kernels", at::kBFloat16, false}, CallCase{"f32_aten", at::kFloat, true}),
                         [](const auto& info) { return info.param.name; });

class KeptBytes : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(KeptBytes, AreWhatTheListSaysForEveryMethod) {
  // The portable path pads no ranks: the list is then an upper bound.
  const bool is_bound = GetParam() != at::kDouble && kernel_isa(GetParam(), test_device()) == kernels::Isa::none;
  std::vector<std::string> models = tiny_families;
  models.push_back("random");
  for (const std::string& family : models) {
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
            bytes - (head_input && op.keeps ? counts.tokens * config.hidden_size * accumulation_bytes(element) : 0);
      }
      if (is_bound) {
        ASSERT_EQ(kept_by_layer.size(), expected_by_layer.size());
        for (size_t layer = 0; layer < kept_by_layer.size(); ++layer) {
          EXPECT_GE(2 * kept_by_layer[layer], expected_by_layer[layer]) << family << ", " << job.name;
          EXPECT_LE(kept_by_layer[layer], expected_by_layer[layer]) << family << ", " << job.name;
        }
        EXPECT_LE(kept, expected) << family << ", " << job.name;
      } else {
        EXPECT_EQ(kept_by_layer, expected_by_layer) << family << ", " << job.name;
        EXPECT_EQ(kept, expected) << family << ", " << job.name;
      }
    }
  }
}

TEST_P(KeptBytes, UnderRecomputationAreTheStreamBeforeAdaptedLayers) {
  const auto backbone = random_backbone(kernel_friendly_config(3), GetParam());
  Interpreter interpreter(backbone);
  RandomJob job = lora_job("upper", 1, 4, 0.1, {"all-linear"}, {40, 9});
  job.adapter.layers_to_transform = {1, 2};
  const auto adapter = job.make_adapter(backbone->config(), GetParam());
  bool seen = false;
  interpreter.stage().on_operator = [&](const Operator& op, const MicrobatchState& state, double) {
    if (op.kind != OperatorKind::head) return;
    const int64_t stream = state.token_count() * backbone->config().hidden_size * accumulation_bytes(static_cast<int64_t>(c10::elementSize(GetParam())));
    EXPECT_EQ(state.layers[0].bytes(), 0);
    EXPECT_EQ(state.layers[1].bytes(), stream);
    EXPECT_EQ(state.layers[2].bytes(), stream);
    seen = true;
  };
  gradients_of(interpreter, {&job}, {adapter.get()}, {.recompute = true});
  interpreter.stage().on_operator = nullptr;
  EXPECT_TRUE(seen);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, KeptBytes, ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16));

}  // namespace
}  // namespace cotune::testing
