#include <algorithm>

#include "schedule/memory/memory_shapes.h"
#include "schedule/memory/resident_memory.h"
#include "schedule/memory/step_memory_simulation.h"

namespace cotune {
namespace {

int64_t padded(int64_t width) { return (width + 31) / 32 * 32; }

}  // namespace

// ---- products with adapters ----

StepMemorySimulation::SiteBlocks& StepMemorySimulation::site(const Operator& op, const AdapterShape& adapter) {
  return layer(op).sites[{adapter.job, adapter.projection}];
}

std::vector<const AdapterShape*> StepMemorySimulation::adapters_of(const Operator& op, AdapterMethod method) const {
  std::vector<const AdapterShape*> found;
  for (const AdapterShape& adapter : op.adapters) {
    if (adapter.method == method) found.push_back(&adapter);
  }
  return found;
}

StepMemorySimulation::Block StepMemorySimulation::masked_inputs(const Operator& op) {
  int64_t values = 0;
  for (const AdapterShape* adapter : adapters_of(op, AdapterMethod::lora)) {
    if (adapter->drops) values += tokens_of(*adapter) * projection_size(config_, adapter->projection).in;
  }
  return allocate(values, e_);
}

StepMemorySimulation::Block StepMemorySimulation::shrink_forms(const std::vector<Form>& forms) {
  int64_t bytes = 0;
  for (const Form& form : forms) bytes += shrink_form_bytes(form.rank, form.width, facts_);
  return allocate(bytes, 1);
}

StepMemorySimulation::Block StepMemorySimulation::expand_forms(const std::vector<Form>& forms) {
  int64_t bytes = 0;
  for (const Form& form : forms) bytes += expand_form_bytes(form.rank, form.width, facts_);
  return allocate(bytes, 1);
}

StepMemorySimulation::Block StepMemorySimulation::shrunk(const AdapterShape& adapter) {
  return allocate(tokens_of(adapter) * padded(adapter.width), e_);
}

void StepMemorySimulation::shrink_inputs(const Operator& op, bool drops) {
  std::vector<Form> forms;
  for (const AdapterShape* adapter : adapters_of(op, AdapterMethod::lora)) {
    if (adapter->drops != drops) continue;
    site(op, *adapter).kept = {shrunk(*adapter)};
    forms.push_back({projection_size(config_, adapter->projection).in, adapter->width});
  }
  shrink_forms(forms);
}

StepMemorySimulation::Block StepMemorySimulation::forward_product(const Operator& op, int64_t out, int64_t size) {
  {
    const Block masked = masked_inputs(op);
    shrink_inputs(op, false);
    shrink_inputs(op, true);
  }
  Block y = allocate(tokens_ * out, size);
  std::vector<Form> terms;
  for (const AdapterShape* adapter : adapters_of(op, AdapterMethod::lora)) {
    terms.push_back({projection_size(config_, adapter->projection).out, adapter->width});
  }
  expand_forms(terms);
  apply_bottlenecks(op, out);
  return y;
}

void StepMemorySimulation::apply_bottlenecks(const Operator& op, int64_t out) {
  const auto adapters = adapters_of(op, AdapterMethod::bottleneck);
  if (adapters.empty()) return;
  int64_t rows = 0;
  for (const AdapterShape* adapter : adapters) rows += tokens_of(*adapter);
  const Block outputs = allocate(rows * out, e_);
  std::vector<Block> z;
  std::vector<Form> down;
  for (const AdapterShape* adapter : adapters) {
    z.push_back(shrunk(*adapter));
    down.push_back({out, adapter->width});
  }
  shrink_forms(down);
  std::vector<Block> active;
  std::vector<Form> up;
  for (const AdapterShape* adapter : adapters) {
    active.push_back(activated(*adapter));
    up.push_back({out, adapter->width});
  }
  expand_forms(up);
  for (size_t i = 0; i < adapters.size(); ++i) site(op, *adapters[i]).kept = {i == 0 ? outputs : nullptr, z[i]};
}

StepMemorySimulation::Block StepMemorySimulation::backward_product(const Operator& op, int64_t in, int64_t out) {
  const Block replaced = enter_backward(op, out);
  Block dx = allocate(tokens_ * in, e_);
  std::vector<Form> terms;
  for (const AdapterShape* adapter : adapters_of(op, AdapterMethod::lora)) {
    if (!adapter->drops) terms.push_back({in, adapter->width});
  }
  expand_forms(terms);
  std::vector<Form> masked;
  for (const AdapterShape* adapter : adapters_of(op, AdapterMethod::lora)) {
    if (adapter->drops) masked.push_back({in, adapter->width});
  }
  expand_forms(masked);
  return dx;
}

StepMemorySimulation::Block StepMemorySimulation::enter_backward(const Operator& op, int64_t out) {
  for (const Projection projection : all_projections) {  // a grouped call for the columns of each
    std::vector<Form> forms;
    for (const AdapterShape* adapter : adapters_of(op, AdapterMethod::lora)) {
      if (adapter->projection != projection) continue;
      site(op, *adapter).kept.push_back(shrunk(*adapter));
      forms.push_back({projection_size(config_, projection).out, adapter->width});
    }
    shrink_forms(forms);
  }
  const auto bottlenecks = adapters_of(op, AdapterMethod::bottleneck);
  if (bottlenecks.empty()) return nullptr;
  std::vector<Block> groups;
  std::vector<Form> up;
  for (const AdapterShape* adapter : bottlenecks) {
    groups.push_back(shrunk(*adapter));
    up.push_back({out, adapter->width});
  }
  shrink_forms(up);
  std::vector<Form> down;
  for (const AdapterShape* adapter : bottlenecks) {
    site(op, *adapter).kept.push_back(activated(*adapter));
    down.push_back({out, adapter->width});
  }
  Block replaced = allocate(tokens_ * out, e_);
  expand_forms(down);
  return replaced;
}

void StepMemorySimulation::adapter_gradient(const Operator& op, int64_t out) {
  if (op.without_input_gradient) enter_backward(op, out);
  masked_inputs(op);
  std::vector<Block> active;
  for (const AdapterShape* adapter : adapters_of(op, AdapterMethod::bottleneck)) active.push_back(activated(*adapter));
  for (const AdapterShape& adapter : op.adapters) site(op, adapter).kept.clear();
}

// ---- the operators of engine/stage.cc ----

void StepMemorySimulation::run_head() {
  kind_ = logits;
  state_->d_hidden = allocate(tokens_ * hidden_, e_);
  const int64_t labelled = counts_->labelled;
  if (labelled == 0) return;
  Block stream = a_ == e_ ? nullptr : allocate(labelled * hidden_, a_);
  const Block normed = allocate(labelled * hidden_, e_), rms = allocate(labelled, 4), rows = allocate(labelled * hidden_, e_);
  stream.reset();
  losses_.emplace_back(allocate(labelled, 4), labelled);
  const Block gradient = allocate(labelled * hidden_, e_);
  const int64_t vocabulary = config_.vocabulary_size;
  const int64_t chunk = std::max<int64_t>(64, head_workspace_ / (vocabulary * e_) / 64 * 64);
  for (int64_t begin = 0; begin < labelled; begin += chunk) {
    const int64_t count = std::min(chunk, labelled - begin);
    const Block scores = allocate(count * vocabulary, e_), d_rows = allocate(count * hidden_, e_);
  }
  const Block d_rows = allocate(labelled * hidden_, e_);
}

void StepMemorySimulation::attend(Direction direction) {
  kind_ = workspace;
  int64_t longest = 0;
  for (const RowPart& part : row_parts(step_.plan.microbatches[static_cast<size_t>(microbatch_)])) {
    longest = std::max(longest, part.position + part.length + part.pad);
  }
  allocate(facts_.attention_threads, attention_scratch_bytes(config_, longest, direction, facts_));
}

void StepMemorySimulation::attention_backward(int64_t layer) {
  state_->d_qkv = allocate(tokens_ * qkv_, e_);
  kind_ = chain_kv;
  for (const RowPart& part : row_parts(step_.plan.microbatches[static_cast<size_t>(microbatch_)])) {
    if (part.position == 0 && part.length == part.row_length) continue;
    ChainBlocks& chain = chains_.at({part.job, part.row});
    auto& [keys, values] = chain.gradients[static_cast<size_t>(layer)];
    if (keys != nullptr) continue;
    keys = allocate(chain.rows * kv_, 4);
    values = allocate(chain.rows * kv_, 4);
  }
  attend(Direction::backward);
  state_->d_x.reset();
}

void StepMemorySimulation::run_operator(const Operator& op) {
  kind_ = activations;
  MicrobatchBlocks& s = *state_;
  LayerBlocks none;
  LayerBlocks& record = op.layer >= 0 ? layer(op) : none;
  const int64_t stream = tokens_ * hidden_;
  const auto norm = [&](Block& rms, Block& kept) {
    Block y = allocate(stream, e_);
    rms = allocate(tokens_, 4);
    if (op.keeps) kept = a_ == e_ ? s.hidden : allocate(stream, e_);
    return y;
  };
  switch (op.kind) {
    case OperatorKind::embedding: {
      const Block rows = a_ == e_ ? nullptr : allocate(stream, e_);
      s.hidden = allocate(stream, a_);
      break;
    }
    case OperatorKind::attention_norm: s.x = norm(record.attention_rms, record.input); break;
    case OperatorKind::qkv_proj: record.qkv = forward_product(op, qkv_, e_); break;
    case OperatorKind::attention:
      record.attention_out = allocate(tokens_ * query_, e_);
      record.lse = allocate(tokens_ * config_.head_count, 4);
      s.x = record.attention_out;
      attend(Direction::forward);
      break;
    case OperatorKind::o_proj: s.hidden = forward_product(op, hidden_, a_); break;
    case OperatorKind::mlp_norm: s.x = norm(record.mlp_rms, record.middle); break;
    case OperatorKind::gate_up_proj: record.gate_up = forward_product(op, 2 * intermediate_, e_); break;
    case OperatorKind::swiglu: s.x = allocate(tokens_ * intermediate_, e_); break;
    case OperatorKind::down_proj:
      s.hidden = forward_product(op, hidden_, a_);
      s.x.reset();
      if (op.layer + 1 == config_.layer_count) s.final_hidden = s.hidden;
      break;
    case OperatorKind::loss_head:  // no part of a training step
    case OperatorKind::down_error_gather:  // nor those of a step on one rank
    case OperatorKind::gate_up_input_gather:
    case OperatorKind::o_error_gather:
    case OperatorKind::qkv_input_gather: break;
    case OperatorKind::head: run_head(); break;

    case OperatorKind::down_proj_backward: s.d_x = backward_product(op, intermediate_, hidden_); break;
    case OperatorKind::swiglu_backward:
      s.d_gate_up = allocate(tokens_ * 2 * intermediate_, e_);
      s.activated = allocate(tokens_ * intermediate_, e_);
      s.d_x.reset();
      break;
    case OperatorKind::down_adapter_gradient:
      if (s.activated == nullptr) s.activated = allocate(tokens_ * intermediate_, e_);
      adapter_gradient(op, hidden_);
      break;
    case OperatorKind::gate_up_proj_backward:
      s.activated.reset();
      record.gate_up.reset();
      s.d_x = backward_product(op, hidden_, 2 * intermediate_);
      break;
    case OperatorKind::mlp_norm_backward:
    case OperatorKind::attention_norm_backward:
      s.d_hidden = allocate(stream, e_);
      s.d_x.reset();
      break;
    case OperatorKind::gate_up_adapter_gradient: {
      const Block normed = allocate(stream, e_);
      adapter_gradient(op, 2 * intermediate_);
      break;
    }
    case OperatorKind::o_proj_backward:
      s.d_gate_up.reset();
      s.d_x = backward_product(op, query_, hidden_);
      break;
    case OperatorKind::o_adapter_gradient: adapter_gradient(op, hidden_); break;
    case OperatorKind::attention_backward: attention_backward(op.layer); break;
    case OperatorKind::qkv_proj_backward: s.d_x = backward_product(op, hidden_, qkv_); break;
    case OperatorKind::qkv_adapter_gradient: {
      const Block normed = allocate(stream, e_);
      adapter_gradient(op, qkv_);
      s.d_qkv.reset();
      break;
    }
  }
}

}  // namespace cotune
