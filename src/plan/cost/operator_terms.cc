#include "plan/cost/operator_terms.h"

#include <algorithm>

#include "schedule/adapter_shape.h"
#include "schedule/operator_cost.h"
#include "schedule/sequence_parallel.h"

namespace cotune {
namespace {

enum class Form { elementwise, attention, head, product, gradient };

Form form_of(OperatorKind kind) {
  switch (kind) {
    case OperatorKind::attention:
    case OperatorKind::attention_backward:
      return Form::attention;
    case OperatorKind::loss_head:
    case OperatorKind::head:
      return Form::head;
    case OperatorKind::qkv_proj:
    case OperatorKind::o_proj:
    case OperatorKind::gate_up_proj:
    case OperatorKind::down_proj:
    case OperatorKind::qkv_proj_backward:
    case OperatorKind::o_proj_backward:
    case OperatorKind::gate_up_proj_backward:
    case OperatorKind::down_proj_backward:
      return Form::product;
    case OperatorKind::qkv_adapter_gradient:
    case OperatorKind::o_adapter_gradient:
    case OperatorKind::gate_up_adapter_gradient:
    case OperatorKind::down_adapter_gradient:
      return Form::gradient;
    case OperatorKind::embedding:
    case OperatorKind::attention_norm:
    case OperatorKind::mlp_norm:
    case OperatorKind::swiglu:
    case OperatorKind::swiglu_backward:
    case OperatorKind::mlp_norm_backward:
    case OperatorKind::attention_norm_backward:
    case OperatorKind::down_error_gather:
    case OperatorKind::gate_up_input_gather:
    case OperatorKind::o_error_gather:
    case OperatorKind::qkv_input_gather:
      return Form::elementwise;
  }
  return Form::elementwise;
}

constexpr OperatorKind last_kind = OperatorKind::qkv_adapter_gradient;  // that is measured

bool is_norm(OperatorKind kind) {
  return kind == OperatorKind::attention_norm || kind == OperatorKind::mlp_norm || kind == OperatorKind::attention_norm_backward ||
         kind == OperatorKind::mlp_norm_backward;
}

const std::vector<std::string>& names_of(Form form) {
  static const std::vector<std::string> adapters = {
      "lora sites",      "lora n·p·in",         "lora n·p·out",       "dropped n·in",    "bottleneck sites", "bottleneck n·w·out",
      "bottleneck n·out", "diff pruning sites", "diff pruning n·entries", "diff pruning n·(in+out)"};
  static const std::vector<std::string> gradients = {"lora atoms", "lora atoms·w·(in+out)", "bottleneck atoms·w·out",
                                                     "diff pruning atoms·entries"};
  const auto joined = [](std::vector<std::string> first, const std::vector<std::vector<std::string>>& others) {
    for (const auto& other : others) first.insert(first.end(), other.begin(), other.end());
    return first;
  };
  static const std::vector<std::string> elementwise_names = {"1", "tokens"},
                                        attention_names = {"1", "tokens", "pairs", "row parts"},
                                        head_names = {"1", "tokens", "labelled"},
                                        product_names = joined({"1", "tokens", "tokens in 64s"}, {adapters}),
                                        gradient_names = joined({"1", "tokens"}, {adapters, gradients});
  switch (form) {
    case Form::elementwise: return elementwise_names;
    case Form::attention: return attention_names;
    case Form::head: return head_names;
    case Form::product: return product_names;
    case Form::gradient: return gradient_names;
  }
  return elementwise_names;
}

/// Of the terms of a form those that come before the adapters'.
size_t frozen_term_count(Form form) {
  switch (form) {
    case Form::elementwise: return 2;
    case Form::attention: return 4;
    case Form::head: return 3;
    case Form::product: return 3;
    case Form::gradient: return 2;
  }
  return 0;
}

double rounded_up(int64_t value, int64_t multiple) {
  return static_cast<double>((value + multiple - 1) / multiple * multiple);
}

/// Sums over the adapters of one operator, in the order of the names.
struct AdapterTerms {
  double lora_sites = 0, lora_in = 0, lora_out = 0, dropped = 0;
  double bottleneck_sites = 0, bottleneck_products = 0, bottleneck_values = 0;
  double diff_sites = 0, diff_entries = 0, diff_values = 0;
  double lora_atoms = 0, lora_gradients = 0, bottleneck_gradients = 0, diff_gradients = 0;

  void add(const AdapterShape& adapter, const ProjectionSize& size, double tokens, double atoms) {
    const auto in = static_cast<double>(size.in), out = static_cast<double>(size.out);
    const auto width = static_cast<double>(adapter.width), entries = static_cast<double>(adapter.entries);
    switch (adapter.method) {
      case AdapterMethod::lora: {
        const double panels = rounded_up(adapter.width, 32);
        lora_sites += 1;
        lora_in += tokens * panels * in;
        lora_out += tokens * panels * out;
        if (adapter.drops) dropped += tokens * in;
        lora_atoms += atoms;
        lora_gradients += atoms * width * (in + out);
        break;
      }
      case AdapterMethod::bottleneck:
        bottleneck_sites += 1;
        bottleneck_products += tokens * width * out;
        bottleneck_values += tokens * out;
        bottleneck_gradients += atoms * width * out;
        break;
      case AdapterMethod::diff_pruning:
        diff_sites += 1;
        diff_entries += tokens * entries;
        diff_values += tokens * (in + out);
        diff_gradients += atoms * entries;
        break;
    }
  }

  void append_to(std::vector<double>& terms, bool with_gradients) const {
    terms.insert(terms.end(), {lora_sites, lora_in, lora_out, dropped, bottleneck_sites, bottleneck_products,
                               bottleneck_values, diff_sites, diff_entries, diff_values});
    if (with_gradients) terms.insert(terms.end(), {lora_atoms, lora_gradients, bottleneck_gradients, diff_gradients});
  }
};

AdapterTerms adapter_terms(const ModelConfig& config, const StageShape& stage, const Operator& op,
                           const MicrobatchCounts& counts) {
  AdapterTerms terms;
  for (const AdapterShape& adapter : op.adapters) {
    const auto job = static_cast<size_t>(adapter.job);
    if (job >= counts.job_tokens.size() || counts.job_tokens[job] == 0) continue;
    const int64_t atoms = job < counts.job_atoms.size() ? counts.job_atoms[job] : 1;
    const int64_t rows = adapts_slices(adapter.method) ? largest_slice(counts.job_tokens[job], stage) : counts.job_tokens[job];
    terms.add(adapter, projection_size(config, adapter.projection, stage.tensor_parallel), static_cast<double>(rows), static_cast<double>(atoms));
  }
  return terms;
}

void add(StepTerms& sum, const std::vector<double>& terms) {
  sum.sums.resize(terms.size(), 0);
  for (size_t i = 0; i < terms.size(); ++i) sum.sums[i] += terms[i];
  ++sum.calls;
}

}  // namespace

std::vector<double> operator_terms(const ModelConfig& config, const StageShape& stage, const Operator& op,
                                   const MicrobatchCounts& counts) {
  const auto tokens = static_cast<double>(counts.tokens);
  switch (form_of(op.kind)) {
    case Form::elementwise:
      return {1, is_norm(op.kind) ? static_cast<double>(largest_slice(counts.tokens, stage)) : tokens};
    case Form::attention:
      return {1, tokens, static_cast<double>(counts.attention_pairs), static_cast<double>(counts.row_parts)};
    case Form::head:
      return {counts.labelled > 0 ? 1.0 : 0.0, tokens, static_cast<double>(counts.labelled)};
    case Form::product: {
      std::vector<double> terms = {1, tokens, rounded_up(counts.tokens, 64)};
      adapter_terms(config, stage, op, counts).append_to(terms, false);
      return terms;
    }
    case Form::gradient: {
      std::vector<double> terms = {1, tokens};
      adapter_terms(config, stage, op, counts).append_to(terms, true);
      return terms;
    }
  }
  return {};
}

std::vector<double> divided_operator_terms(const ModelConfig& config, const StageShape& stage, const Operator& op,
                                           const MicrobatchCounts& counts) {
  StageShape whole = stage;
  whole.tensor_parallel = 1;
  whole.is_sequence_parallel = false;
  Operator frozen = op;
  frozen.adapters.clear();
  const auto flops = [&](const StageShape& shape) { return operator_cost(config, shape, frozen, counts, 2).flops; };
  const double all = flops(whole), share = all > 0 ? flops(stage) / all : 1;  // embedding and adapter gradients have no frozen operations
  std::vector<double> terms = operator_terms(config, stage, op, counts);
  const std::vector<double> of_frozen = operator_terms(config, whole, frozen, counts);
  const size_t shared = frozen_term_count(form_of(op.kind));
  for (size_t i = 1; i < shared; ++i) terms[i] = of_frozen[i] * share;
  return terms;
}

std::vector<std::string> operator_term_names(const std::string& key) {
  if (key == round_key) return {"1", "microbatches", "tokens", "adapters in microbatches", "trained values", "adapters"};
  for (int kind = 0; kind <= static_cast<int>(last_kind); ++kind) {
    const std::string name = to_string(static_cast<OperatorKind>(kind));
    if (key == name || key == name + alone_suffix) return names_of(form_of(static_cast<OperatorKind>(kind)));
  }
  return {};
}

std::map<std::string, StepTerms> step_terms(const ModelConfig& config, const PlannedStep& step) {
  const StageShape stage{.last_layer = config.layer_count};
  const StepOperators operators(config, step);
  std::map<std::string, StepTerms> terms;
  double tokens = 0, adapters_in_microbatches = 0, values = 0;
  for (const Action& action : step.plan.actions) {
    for (const Operator* op : operators.of(action)) {
      add(terms[profile_key(*op)], operator_terms(config, stage, *op, operators.counts(action.microbatch)));
    }
    if (action.kind != ActionKind::forward) continue;
    tokens += static_cast<double>(operators.counts(action.microbatch).tokens);
    adapters_in_microbatches += static_cast<double>(operators.adapter_count(action.microbatch));
  }
  for (const AdapterShape& adapter : step.adapters) values += static_cast<double>(parameter_count(config, adapter));
  add(terms[round_key], {1, static_cast<double>(step.plan.microbatches.size()), tokens, adapters_in_microbatches, values,
                         static_cast<double>(step.adapters.size())});
  return terms;
}

}  // namespace cotune
