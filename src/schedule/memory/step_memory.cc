#include "schedule/memory/step_memory.h"

#include <algorithm>

#include "schedule/memory/memory_shapes.h"
#include "schedule/memory/step_memory_simulation.h"

namespace cotune {

StepMemory StepMemorySimulation::run() {
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

void StepMemorySimulation::begin(const Action& action) {
  counts_ = &operators_.counts(action.microbatch);
  tokens_ = counts_->tokens;
  state_ = &live_.at(action.microbatch);
  microbatch_ = action.microbatch;
}

void StepMemorySimulation::make_state(int32_t microbatch) {
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

void StepMemorySimulation::make_chains(int32_t microbatch) {
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

void StepMemorySimulation::free_chains(int32_t microbatch) {
  for (const RowPart& part : row_parts(step_.plan.microbatches[static_cast<size_t>(microbatch)])) {
    if (part.position == 0) chains_.erase({part.job, part.row});
  }
}

void StepMemorySimulation::forward(const Action& action) {
  make_state(action.microbatch);
  begin(action);
  for (const Operator* op : operators_.of(action)) {
    run_operator(*op);
    if (op->kind != OperatorKind::attention_norm && op->kind != OperatorKind::down_proj) continue;
    LayerBlocks& record = layer(*op);
    if (op->kind == OperatorKind::attention_norm) {
      if (op->keeps && step_.plan.policy.recompute) record.stream = state_->hidden;
    } else if (!op->keeps) {
      LayerBlocks none;
      none.sites = std::move(record.sites);
      record = std::move(none);
    } else if (step_.plan.policy.recompute) {
      LayerBlocks kept;
      kept.stream = record.stream;
      record = std::move(kept);
    }
  }
  state_->hidden.reset();
  state_->x.reset();
}

void StepMemorySimulation::recompute(const Action& action) {
  begin(action);
  int64_t last = -1;
  for (const Operator* op : operators_.of(action)) {
    if (op->layer != last) state_->hidden = std::move(layer(*op).stream);
    last = op->layer;
    run_operator(*op);
  }
  state_->hidden.reset();
  state_->x.reset();
  state_->final_hidden.reset();
}

void StepMemorySimulation::backward(const Action& action) {
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

void StepMemorySimulation::read_losses() {
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

namespace {

/// Whether StepMemorySimulation has the method's tensors.
bool simulates(AdapterMethod method) {
  switch (method) {
    case AdapterMethod::lora:
    case AdapterMethod::bottleneck:
    case AdapterMethod::diff_pruning: return true;
  }
  return false;
}

bool runs_on_kernels(const ModelConfig& config, const MemoryFacts& facts) {
  if (!attends_with_kernels(config, facts) || !config.gated) return false;
  for (const int64_t size : {config.hidden_size, config.query_size(), config.key_value_size(), config.intermediate_size,
                             config.vocabulary_size}) {
    if (size % 32 != 0) return false;
  }
  return true;
}

}  // namespace

std::optional<StepMemory> step_memory(const ModelConfig& config, const PlannedStep& step, const MemoryFacts& facts) {
  if (!runs_on_kernels(config, facts)) return std::nullopt;
  for (const AdapterShape& adapter : step.adapters) {
    if (!simulates(adapter.method)) return std::nullopt;
  }
  return StepMemorySimulation(config, step, facts).run();
}

}  // namespace cotune
