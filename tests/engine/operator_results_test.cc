// What each operator makes is what the list counts: which tensors of the microbatch's record, of how many rows and columns, and the
// gradients of which adapters. Also the order of operators under recomputation.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "adapter/adapter_shard.h"
#include "engine/random_job.h"
#include "engine/rank_rounds.h"
#include "engine/reference_job.h"
#include "ops/backend.h"
#include "schedule/adapter_shape.h"
#include "schedule/operators.h"
#include "schedule/step_operators.h"

namespace cotune::testing {
namespace {

using Tensors = std::map<std::string, at::Tensor>;
using Shapes = std::map<std::string, std::vector<int64_t>>;

std::string in_layer(int64_t layer, const char* name) { return fmt::format("layers.{}.{}", layer, name); }

/// Every tensor that operators write, by name.
Tensors tensors_of(const MicrobatchState& state) {
  Tensors tensors{{"hidden", state.hidden},       {"x", state.x},
                  {"final_hidden", state.final_hidden}, {"d_hidden", state.d_hidden},
                  {"d_x", state.d_x},             {"d_qkv", state.d_qkv},
                  {"d_gate_up", state.d_gate_up}, {"activated", state.activated},
                  {"whole_error", state.whole_error}, {"whole_input", state.whole_input},
                  {"losses", state.losses},       {"wrong", state.wrong}};
  for (size_t index = 0; index < state.layers.size(); ++index) {
    const LayerRecord& record = state.layers[index];
    const auto layer = static_cast<int64_t>(index);
    tensors[in_layer(layer, "stream")] = record.stream;
    tensors[in_layer(layer, "input")] = record.input;
    tensors[in_layer(layer, "attention_inverse_rms")] = record.attention_inverse_rms;
    tensors[in_layer(layer, "qkv")] = record.qkv;
    tensors[in_layer(layer, "attention.out")] = record.attention.out;
    tensors[in_layer(layer, "attention.lse")] = record.attention.lse;
    tensors[in_layer(layer, "middle")] = record.middle;
    tensors[in_layer(layer, "mlp_inverse_rms")] = record.mlp_inverse_rms;
    tensors[in_layer(layer, "gate_up")] = record.gate_up;
  }
  std::erase_if(tensors, [](const auto& each) { return !each.second.defined(); });
  return tensors;
}

/// What the list says that an operator makes of a microbatch. A name for a tensor that was there (a layer's input, which is the output
/// of the one below) is not a new one.
Shapes listed(const Operator& op, const ModelConfig& config, const StageShape& stage, const MicrobatchState& state) {
  const auto out = [&](Projection projection) { return projection_size(config, projection, stage.tensor_parallel).out; };
  const int64_t hidden = config.hidden_size, query = out(Projection::q), qkv = query + out(Projection::k) + out(Projection::v);
  const int64_t inner = out(Projection::up), gate_up = out(Projection::gate) + inner, heads = config.head_count / stage.tensor_parallel;
  const int64_t tokens = state.token_count(), stream = state.slices ? state.slices->own.count() : tokens, scored = state.labels.size(0);
  const auto layer = [&](const char* name) { return in_layer(op.layer, name); };
  const bool rounds_stream = op.keeps && state.hidden.defined() && state.hidden.scalar_type() != state.x.scalar_type();  // for backward
  switch (op.kind) {
    case OperatorKind::embedding: return {{"hidden", {stream, hidden}}};
    case OperatorKind::attention_norm:
      if (rounds_stream) return {{"x", {tokens, hidden}}, {layer("attention_inverse_rms"), {stream}}, {layer("input"), {stream, hidden}}};
      return {{"x", {tokens, hidden}}, {layer("attention_inverse_rms"), {stream}}};
    case OperatorKind::qkv_proj: return {{layer("qkv"), {tokens, qkv}}};
    case OperatorKind::attention:
      return {{"x", {tokens, query}}, {layer("attention.out"), {tokens, query}}, {layer("attention.lse"), {tokens, heads}}};
    case OperatorKind::o_proj: return {{"hidden", {stream, hidden}}};
    case OperatorKind::mlp_norm:
      if (rounds_stream) return {{"x", {tokens, hidden}}, {layer("mlp_inverse_rms"), {stream}}, {layer("middle"), {stream, hidden}}};
      return {{"x", {tokens, hidden}}, {layer("mlp_inverse_rms"), {stream}}};
    case OperatorKind::gate_up_proj: return {{layer("gate_up"), {tokens, gate_up}}};
    case OperatorKind::swiglu: return {{"x", {tokens, inner}}};
    case OperatorKind::down_proj:
      if (op.layer + 1 == config.layer_count) return {{"hidden", {stream, hidden}}, {"final_hidden", {stream, hidden}}};
      return {{"hidden", {stream, hidden}}};
    case OperatorKind::loss_head:
      if (scored == 0) return {};
      return {{"losses", {scored}}, {"wrong", {scored}}};
    case OperatorKind::head:
      if (scored == 0) return {{"d_hidden", {stream, hidden}}};
      return {{"d_hidden", {stream, hidden}}, {"losses", {scored}}};
    case OperatorKind::down_proj_backward: return {{"d_x", {tokens, inner}}};
    case OperatorKind::swiglu_backward: {
      const bool adapts_down = std::ranges::any_of(state.jobs, [&](const JobRound* round) {
        return round->adapter->at(op.layer, Projection::down) != nullptr;
      });
      if (adapts_down) return {{"d_gate_up", {tokens, gate_up}}, {"activated", {tokens, inner}}};
      return {{"d_gate_up", {tokens, gate_up}}};
    }
    case OperatorKind::gate_up_proj_backward:
    case OperatorKind::qkv_proj_backward: return {{"d_x", {stream, hidden}}};
    case OperatorKind::mlp_norm_backward:
    case OperatorKind::attention_norm_backward: return {{"d_hidden", {stream, hidden}}};
    case OperatorKind::o_proj_backward: return {{"d_x", {tokens, query}}};
    case OperatorKind::attention_backward: return {{"d_qkv", {tokens, qkv}}};
    case OperatorKind::down_error_gather:
    case OperatorKind::o_error_gather: return {{"whole_error", {tokens, hidden}}};
    case OperatorKind::gate_up_input_gather:
    case OperatorKind::qkv_input_gather: return {{"whole_input", {tokens, hidden}}};
    case OperatorKind::down_adapter_gradient:
    case OperatorKind::gate_up_adapter_gradient:
    case OperatorKind::o_adapter_gradient:
    case OperatorKind::qkv_adapter_gradient: return {};
  }
  return {};
}

bool is_adapter_gradient(OperatorKind kind) {
  return kind == OperatorKind::down_adapter_gradient || kind == OperatorKind::gate_up_adapter_gradient ||
         kind == OperatorKind::o_adapter_gradient || kind == OperatorKind::qkv_adapter_gradient;
}

/// Follows one job alone through a stage.
class Results {
 public:
  Results(const ModelConfig& config, const StageShape& stage, const Adapter& adapter) : config_(config), stage_(stage), adapter_(adapter) {
    changed_gradients();
  }

  void expect_listed(const Operator& op, const MicrobatchState& state) {
    seen_.insert(op.kind);
    execution_.push_back(op.name());
    EXPECT_EQ(made(state), listed(op, config_, stage_, state)) << op.name();
    std::set<std::string> expected;
    for (const AdapterShape& shape : op.adapters) {
      if (!is_adapter_gradient(op.kind)) break;
      const std::string prefix = "base_model.model." + module_name(shape.layer, shape.projection) + ".";
      for (const Parameter& parameter : adapter_.parameters()) {
        if (parameter.name.starts_with(prefix) && parameter.value.numel() > 0) expected.insert(parameter.name);
      }
    }
    const std::set<std::string> changed = changed_gradients();
    if (state.labels.size(0) > 0) {
      EXPECT_EQ(changed, expected) << op.name();
    } else {  // of a chunk without labels some are zero
      EXPECT_TRUE(std::ranges::includes(expected, changed)) << op.name();
    }
  }

  const std::set<OperatorKind>& seen() const { return seen_; }
  const std::vector<std::string>& execution() const { return execution_; }

 private:
  /// Since the operator before of this microbatch; what was there then is kept, so that no address is taken twice.
  Shapes made(const MicrobatchState& state) {
    Tensors now = tensors_of(state);
    Tensors& before = before_[&state];
    Shapes shapes;
    for (const auto& [name, tensor] : now) {
      if (std::ranges::none_of(before, [&](const auto& each) { return each.second.is_same(tensor); })) shapes[name] = tensor.sizes().vec();
    }
    before = std::move(now);
    return shapes;
  }

  std::set<std::string> changed_gradients() {
    std::set<std::string> names;
    for (const Parameter& parameter : adapter_.parameters()) {
      at::Tensor& before = gradients_[parameter.name];
      if (before.defined() && !at::equal(before, parameter.gradient)) names.insert(parameter.name);
      before = parameter.gradient.clone();
    }
    return names;
  }

  const ModelConfig& config_;
  StageShape stage_;
  const Adapter& adapter_;
  std::map<const MicrobatchState*, Tensors> before_;
  std::map<std::string, at::Tensor> gradients_;
  std::set<OperatorKind> seen_;
  std::vector<std::string> execution_;
};

/// Of the actions of a plan, one after the other.
std::vector<std::string> execution_of(const ModelConfig& config, const StepPlan& plan, const RandomJob& job, const Adapter& adapter) {
  const PlannedStep step{plan, std::vector<int64_t>(plan.microbatches.size(), 1),
                         adapter_shapes(0, job.adapter, adapter.setup().modules, config)};
  const StepOperators operators(config, step);
  std::vector<std::string> execution;
  for (const Action& action : plan.actions) {
    for (const Operator* op : operators.of(action)) execution.push_back(op->name());
  }
  return execution;
}

/// Without units whose gradients are zero: those that a ReLU stops.
std::vector<RandomJob> jobs_with_gradients() {
  std::vector<RandomJob> jobs = one_job_of_every_kind();
  for (RandomJob& job : jobs) job.adapter.activation = Activation::gelu;
  return jobs;
}

constexpr auto first_gather = OperatorKind::down_error_gather;

/// Jobs of every kind, alone, in whole rows and in chunks of 5 tokens, kept and recomputed, and evaluated: all that the stage of one
/// rank executes.
void expect_results(const std::shared_ptr<const Backbone>& backbone) {
  const ModelConfig& config = backbone->config();
  const StageShape stage = whole_model(config);
  Interpreter interpreter(backbone);
  std::set<OperatorKind> seen;
  for (const RandomJob& job : jobs_with_gradients()) {
    const auto adapter = job.make_adapter(config, backbone->compute());
    select_alone(interpreter, job, *adapter);
    randomise(*adapter, job.seed, 0.3);
    const Batch batch = job.batch(0, config.vocabulary_size);
    for (const RoundPurpose purpose : {RoundPurpose::select, RoundPurpose::evaluate}) {
      for (const int64_t chunk : {0, 5}) {
        for (const bool recompute : {false, true}) {
          if (recompute && purpose == RoundPurpose::evaluate) continue;
          SCOPED_TRACE(fmt::format("{}, {}, chunks of {}, {}", config.family, job.name, chunk, recompute ? "recomputed" : "kept"));
          const PackingPolicy policy{.token_budget = chunk > 0 ? chunk : 1024, .recompute = recompute, .layer_count = config.layer_count};
          const std::vector<BatchShape> shapes{batch.shape(0, adapter->lowest_layer())};
          const StepPlan plan = chunk > 0 ? plan_step_with_segments(shapes, policy, chunk) : plan_step(shapes, policy);
          std::vector<JobRound> rounds{{.job = 0, .adapter = adapter.get(), .batch = &batch, .purpose = purpose}};
          Results results(config, stage, *adapter);
          interpreter.observe([&](const Operator& op, const MicrobatchState& state, double) { results.expect_listed(op, state); });
          interpreter.run(plan, rounds);
          interpreter.observe(nullptr);
          for (Parameter& parameter : adapter->parameters()) parameter.gradient.zero_();
          if (purpose == RoundPurpose::select) {
            EXPECT_EQ(results.execution(), execution_of(config, plan, job, *adapter));
          }
          seen.insert(results.seen().begin(), results.seen().end());
        }
      }
    }
  }
  for (int kind = 0; kind < static_cast<int>(first_gather); ++kind) {
    EXPECT_TRUE(seen.contains(static_cast<OperatorKind>(kind))) << to_string(static_cast<OperatorKind>(kind)) << " was not executed";
  }
}

class OperatorResults : public ::testing::TestWithParam<std::string> {};

TEST_P(OperatorResults, AreWhatTheListSaysForEveryKindKeptAndRecomputed) { expect_results(tiny_backbone(GetParam(), at::kDouble)); }

INSTANTIATE_TEST_SUITE_P(Families, OperatorResults, ::testing::ValuesIn(tiny_families));

TEST(OperatorResults, OfOurKernelsAreWhatTheListSays) {
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    if (kernel_isa(compute, test_device()) == kernels::Isa::none) continue;
    expect_results(random_backbone(kernel_friendly_config(2), compute));
  }
}

/// The same on both ranks of a pair that divides layers, and maybe the tokens between products.
std::set<OperatorKind> expect_results_of_a_pair(const RandomJob& job, bool is_sequence_parallel, RoundPurpose purpose) {
  const ModelConfig config = eight_heads(2);
  const auto parts = divided_parts(config, 2);
  PipelineLayout layout = even_layout(config, 1, 1, 2);
  layout.stages.front().is_sequence_parallel = is_sequence_parallel;
  Rounds rounds = rounds_of({job}, config, small_microbatches(), 1);
  rounds.rounds.front().purpose = purpose;
  Interpreter whole(random_backbone(config, at::kDouble, at::kCPU));
  select_alone(whole, job, *rounds.adapters.front());
  randomise(*rounds.adapters.front(), job.seed, 0.3);
  const RankPlan plan = plan_round(rounds.plans.front(), layout);
  auto groups = thread_communicators(2);
  std::mutex mutex;
  std::set<OperatorKind> seen;
  const auto run = [&](size_t rank, Communicator& pipeline) {
    const auto adapter = make_adapter_shard(*rounds.adapters.front(), layout.shard_of(static_cast<int32_t>(rank)));
    std::vector<JobRound> own = rounds.rounds;
    own.front().adapter = adapter.get();
    Interpreter interpreter(parts[rank], layout, 0);
    Results results(config, layout.stages.front(), *adapter);
    interpreter.observe([&](const Operator& op, const MicrobatchState& state, double) {
      SCOPED_TRACE(fmt::format("{}, rank {}", job.name, rank));
      results.expect_listed(op, state);
    });
    TensorGroup group(*groups[rank]);
    interpreter.run(plan, own, pipeline, &group);
    groups[rank]->barrier();
    const std::lock_guard lock(mutex);
    seen.insert(results.seen().begin(), results.seen().end());
  };
  auto pipeline = thread_communicators(1), other_pipeline = thread_communicators(1);
  std::thread second([&] { run(1, *other_pipeline.front()); });
  run(0, *pipeline.front());
  second.join();
  return seen;
}

TEST(OperatorResults, OfRanksThatDivideLayersAndTokensAreWhatTheListSays) {
  for (const bool is_sequence_parallel : {false, true}) {
    std::set<OperatorKind> seen;
    for (RandomJob job : jobs_with_gradients()) {
      job.row_lengths = {30, 10};
      for (const RoundPurpose purpose : {RoundPurpose::train, RoundPurpose::evaluate}) {
        seen.merge(expect_results_of_a_pair(job, is_sequence_parallel, purpose));
      }
    }
    const auto last = is_sequence_parallel ? OperatorKind::qkv_input_gather : static_cast<OperatorKind>(static_cast<int>(first_gather) - 1);
    for (int kind = 0; kind <= static_cast<int>(last); ++kind) {
      EXPECT_TRUE(seen.contains(static_cast<OperatorKind>(kind))) << to_string(static_cast<OperatorKind>(kind)) << " was not executed";
    }
  }
}

}  // namespace
}  // namespace cotune::testing
