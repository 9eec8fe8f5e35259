#include "schedule/step_memory.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "schedule/block_ledger.h"

namespace cotune {
namespace {

using Block = BlockLedger::Block;
using enum BlockKind;

/// What an adapter keeps at one projection of one layer, per job and projection.
struct SiteBlocks {
  std::vector<Block> kept;
};

struct LayerBlocks {
  Block input, attention_rms, mlp_rms, qkv, attention_out, lse, middle, gate_up;
  std::map<std::pair<int32_t, Projection>, SiteBlocks> sites;
};

/// engine/microbatch_state.h, as blocks.
struct MicrobatchBlocks {
  std::vector<Block> inputs;
  std::vector<LayerBlocks> layers;
  Block hidden, x, final_hidden, d_hidden, d_x, d_qkv, d_gate_up, activated;
};

/// Keys, values and their gradients of one chain, over all layers.
struct ChainBlocks {
  int64_t rows = 0;
  std::vector<std::pair<Block, Block>> keys_and_values, gradients;
};

int64_t padded(int64_t width) { return (width + 31) / 32 * 32; }

class Simulation {
 public:
  Simulation(const ModelConfig& config, const PlannedStep& step, const MemoryFacts& facts, int64_t head_workspace_bytes)
      : config_(config),
        step_(step),
        operators_(config, step),
        facts_(facts),
        e_(facts.element_size),
        head_workspace_(head_workspace_bytes),
        hidden_(config.hidden_size),
        query_(config.query_size()),
        kv_(config.key_value_size()),
        qkv_(query_ + 2 * kv_),
        intermediate_(config.intermediate_size) {}

  StepMemory run() {
    for (const Action& action : step_.plan.actions) {
      switch (action.kind) {
        case ActionKind::forward: forward(action); break;
        case ActionKind::recompute: recompute(action); break;
        case ActionKind::backward: backward(action); break;
        case ActionKind::optimizer_step: read_losses(); break;
        case ActionKind::free:
          free_chains(action.microbatch);
          live_.erase(action.microbatch);
          break;
        default: break;
      }
    }
    return {ledger_.peak(activations), ledger_.peak(chain_kv), ledger_.peak(workspace), ledger_.peak(logits),
            ledger_.peak_together()};
  }

 private:
  Block allocate(int64_t values, int64_t size) { return ledger_.allocate(kind_, values * size); }

  void begin(const Action& action) {
    counts_ = &operators_.counts(action.microbatch);
    tokens_ = counts_->tokens;
    state_ = &live_.at(action.microbatch);
    microbatch_ = action.microbatch;
  }

  int64_t tokens_of(const AdapterShape& adapter) const { return counts_->job_tokens[static_cast<size_t>(adapter.job)]; }

  // ---- microbatches ----

  void make_state(int32_t microbatch) {
    MicrobatchBlocks state;
    state.layers.resize(static_cast<size_t>(config_.layer_count));
    make_chains(microbatch);
    kind_ = workspace;
    const int64_t tokens = operators_.counts(microbatch).tokens, labelled = operators_.counts(microbatch).labelled;
    for (const int64_t size : {8, 4, 8}) state.inputs.push_back(allocate(tokens, size));
    for (const int64_t size : {8, 4}) state.inputs.push_back(allocate(labelled, size));
    const Block wide_scales = allocate(labelled, 8);
    state.inputs.push_back(allocate(labelled, 4));
    live_[microbatch] = std::move(state);
  }

  void make_chains(int32_t microbatch) {
    kind_ = chain_kv;
    for (const RowPart& part : row_parts(step_.plan.microbatches[static_cast<size_t>(microbatch)])) {
      if (part.position == 0 && part.length == part.row_length) continue;
      ChainBlocks& chain = chains_[{part.job, part.row}];
      const int64_t rows = std::max(part.row_length, part.position + part.length + part.pad);
      chain.keys_and_values.resize(static_cast<size_t>(config_.layer_count));
      chain.gradients.resize(static_cast<size_t>(config_.layer_count));
      if (chain.rows >= rows) continue;
      chain.rows = rows;
      for (auto& [keys, values] : chain.keys_and_values) {
        keys = allocate(rows * kv_, e_);
        values = allocate(rows * kv_, e_);
      }
    }
  }

  void free_chains(int32_t microbatch) {
    for (const RowPart& part : row_parts(step_.plan.microbatches[static_cast<size_t>(microbatch)])) {
      if (part.position == 0) chains_.erase({part.job, part.row});
    }
  }

  void forward(const Action& action) {
    make_state(action.microbatch);
    begin(action);
    for (const Operator* op : operators_.of(action)) {
      run_operator(*op);
      if (op->kind != OperatorKind::down_proj) continue;
      LayerBlocks& record = layer(*op);
      if (!op->keeps) {
        LayerBlocks none;
        none.sites = std::move(record.sites);
        record = std::move(none);
      } else if (step_.plan.policy.recompute) {
        LayerBlocks kept;
        kept.input = record.input;
        record = std::move(kept);
      }
    }
    state_->hidden.reset();
    state_->x.reset();
  }

  void recompute(const Action& action) {
    begin(action);
    state_->hidden = state_->layers[static_cast<size_t>(action.first_layer)].input;
    for (const Operator* op : operators_.of(action)) run_operator(*op);
    state_->hidden.reset();
    state_->x.reset();
    state_->final_hidden.reset();
  }

  void backward(const Action& action) {
    begin(action);
    int64_t previous = -1;
    for (const Operator* op : operators_.of(action)) {
      if (op->layer != previous && previous >= 0) state_->layers[static_cast<size_t>(previous)] = {};
      previous = op->layer;
      run_operator(*op);
      if (op->kind == OperatorKind::head) state_->final_hidden.reset();
    }
    if (previous >= 0) state_->layers[static_cast<size_t>(previous)] = {};
  }

  /// Before an optimizer step the losses of all heads so far are read, as f64.
  void read_losses() {
    if (losses_.empty()) return;
    kind_ = workspace;
    std::vector<Block> parts;
    int64_t all = 0;
    for (const auto& [block, count] : losses_) {
      parts.push_back(allocate(count, 8));
      all += count;
    }
    parts.push_back(allocate(all, 8));
    parts.clear();
    losses_.clear();
  }

  // ---- products with adapters ----

  LayerBlocks& layer(const Operator& op) { return state_->layers[static_cast<size_t>(op.layer)]; }
  SiteBlocks& site(const Operator& op, const AdapterShape& adapter) {
    return layer(op).sites[{adapter.job, adapter.projection}];
  }

  std::vector<const AdapterShape*> adapters_of(const Operator& op, AdapterMethod method) const {
    std::vector<const AdapterShape*> found;
    for (const AdapterShape& adapter : op.adapters) {
      if (adapter.method == method) found.push_back(&adapter);
    }
    return found;
  }

  /// The inputs of LoRA sites that drop, one after another.
  Block masked_inputs(const Operator& op) {
    int64_t values = 0;
    for (const AdapterShape* adapter : adapters_of(op, AdapterMethod::lora)) {
      if (adapter->drops) values += tokens_of(*adapter) * projection_size(config_, adapter->projection).in;
    }
    return allocate(values, e_);
  }

  // Packed forms of the factors of one grouped call, for as long as it runs.

  struct Form {
    int64_t width = 0, rank = 0;
  };
  Block shrink_forms(const std::vector<Form>& forms) {
    int64_t bytes = 0;
    for (const Form& form : forms) bytes += shrink_form_bytes(form.rank, form.width, facts_);
    return allocate(bytes, 1);
  }
  Block expand_forms(const std::vector<Form>& forms) {
    int64_t bytes = 0;
    for (const Form& form : forms) bytes += expand_form_bytes(form.rank, form.width, facts_);
    return allocate(bytes, 1);
  }

  Block shrunk(const AdapterShape& adapter) { return allocate(tokens_of(adapter) * padded(adapter.width), e_); }

  /// x·Aᵀ of the LoRA sites that drop, or of the others.
  void shrink_inputs(const Operator& op, bool drops) {
    std::vector<Form> forms;
    for (const AdapterShape* adapter : adapters_of(op, AdapterMethod::lora)) {
      if (adapter->drops != drops) continue;
      site(op, *adapter).kept = {shrunk(*adapter)};
      forms.push_back({projection_size(config_, adapter->projection).in, adapter->width});
    }
    shrink_forms(forms);
  }

  Block forward_product(const Operator& op, int64_t out) {
    {
      const Block masked = masked_inputs(op);
      shrink_inputs(op, false);
      shrink_inputs(op, true);
    }
    Block y = allocate(tokens_ * out, e_);
    std::vector<Form> terms;
    for (const AdapterShape* adapter : adapters_of(op, AdapterMethod::lora)) {
      terms.push_back({projection_size(config_, adapter->projection).out, adapter->width});
    }
    expand_forms(terms);
    apply_bottlenecks(op, out);
    return y;
  }

  void apply_bottlenecks(const Operator& op, int64_t out) {
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

  /// f(z), or its gradient.
  Block activated(const AdapterShape& adapter) { return shrunk(adapter); }

  Block backward_product(const Operator& op, int64_t in, int64_t out) {
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

  /// What the methods make of the incoming gradient; returns the copy that bottlenecks put in its place.
  Block enter_backward(const Operator& op, int64_t out) {
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

  void adapter_gradient(const Operator& op, int64_t out) {
    if (op.without_input_gradient) enter_backward(op, out);
    masked_inputs(op);
    std::vector<Block> active;
    for (const AdapterShape* adapter : adapters_of(op, AdapterMethod::bottleneck)) active.push_back(activated(*adapter));
    for (const AdapterShape& adapter : op.adapters) site(op, adapter).kept.clear();
  }

  // ---- the operators of engine/stage.cc ----

  void run_head() {
    kind_ = logits;
    state_->d_hidden = allocate(tokens_ * hidden_, e_);
    const int64_t labelled = counts_->labelled;
    if (labelled == 0) return;
    const Block rows = allocate(labelled * hidden_, e_), normed = allocate(labelled * hidden_, e_),
                rms = allocate(labelled, 4);
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

  void attention_backward(int64_t layer) {
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
    state_->d_x.reset();
  }

  void run_operator(const Operator& op) {
    kind_ = activations;
    MicrobatchBlocks& s = *state_;
    LayerBlocks none;
    LayerBlocks& record = op.layer >= 0 ? layer(op) : none;
    const int64_t stream = tokens_ * hidden_;
    const auto norm = [&](Block& rms) {
      Block y = allocate(stream, e_);
      rms = allocate(tokens_, 4);
      return y;
    };
    switch (op.kind) {
      case OperatorKind::embedding: s.hidden = allocate(stream, e_); break;
      case OperatorKind::attention_norm:
        record.input = s.hidden;
        s.x = norm(record.attention_rms);
        break;
      case OperatorKind::qkv_proj: record.qkv = forward_product(op, qkv_); break;
      case OperatorKind::attention:
        record.attention_out = allocate(tokens_ * query_, e_);
        record.lse = allocate(tokens_ * config_.head_count, 4);
        s.x = record.attention_out;
        break;
      case OperatorKind::o_proj: s.hidden = record.middle = forward_product(op, hidden_); break;
      case OperatorKind::mlp_norm: s.x = norm(record.mlp_rms); break;
      case OperatorKind::gate_up_proj: record.gate_up = forward_product(op, 2 * intermediate_); break;
      case OperatorKind::swiglu: s.x = allocate(tokens_ * intermediate_, e_); break;
      case OperatorKind::down_proj:
        s.hidden = forward_product(op, hidden_);
        s.x.reset();
        if (op.layer + 1 == config_.layer_count) s.final_hidden = s.hidden;
        break;
      case OperatorKind::loss_head: break;  // no part of a training step
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

  const ModelConfig& config_;
  const PlannedStep& step_;
  StepOperators operators_;
  const MemoryFacts& facts_;
  int64_t e_, head_workspace_;
  int64_t hidden_, query_, kv_, qkv_, intermediate_;

  BlockLedger ledger_;
  BlockKind kind_ = activations;
  std::map<int32_t, MicrobatchBlocks> live_;
  std::map<std::pair<int32_t, int32_t>, ChainBlocks> chains_;
  std::vector<std::pair<Block, int64_t>> losses_;
  // Of the action at hand.
  MicrobatchBlocks* state_ = nullptr;
  const MicrobatchCounts* counts_ = nullptr;
  int64_t tokens_ = 0;
  int32_t microbatch_ = -1;
};

/// Whether the simulation above has the method's tensors.
bool simulates(AdapterMethod method) {
  switch (method) {
    case AdapterMethod::lora:
    case AdapterMethod::bottleneck:
    case AdapterMethod::diff_pruning: return true;
  }
  return false;
}

bool runs_on_kernels(const ModelConfig& config, const MemoryFacts& facts) {
  if (!facts.packed || facts.element_size == 8 || !config.gated) return false;
  for (const int64_t size : {config.hidden_size, config.query_size(), config.key_value_size(), config.intermediate_size,
                             config.vocabulary_size}) {
    if (size % 32 != 0) return false;
  }
  return config.head_dim % 16 == 0 && config.head_dim <= 128;
}

}  // namespace

std::optional<StepMemory> step_memory(const ModelConfig& config, const PlannedStep& step, const MemoryFacts& facts,
                                      int64_t head_workspace_bytes) {
  if (!runs_on_kernels(config, facts)) return std::nullopt;
  for (const AdapterShape& adapter : step.adapters) {
    if (!simulates(adapter.method)) return std::nullopt;
  }
  return Simulation(config, step, facts, head_workspace_bytes).run();
}

}  // namespace cotune
