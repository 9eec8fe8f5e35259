#include "engine/interpreter.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "base/error.h"
#include "engine/optimizer.h"
#include "ops/memory.h"

namespace cotune {
namespace {

/// Whether the operator belongs to the action's layers (action.h: -1 all; l..m those layers; L, L the head).
bool in_range(const Operator& op, const Action& action, int64_t layer_count) {
  if (action.first_layer < 0) return true;
  if (op.kind == OperatorKind::head) return action.first_layer == layer_count;
  if (op.kind == OperatorKind::embedding) return action.first_layer == 0 && action.last_layer == 0;
  return op.layer >= action.first_layer && op.layer < action.last_layer;
}

/// With recomputation a layer keeps its input alone.
void keep_input_only(LayerRecord& record) {
  LayerRecord kept;
  kept.input = record.input;
  kept.sites.resize(record.sites.size());
  record = std::move(kept);
}

void free_chains(const Microbatch& microbatch, ChainCaches& chains, bool evaluating) {
  for (const RowPart& part : row_parts(microbatch)) {
    // A chain's first chunk is the last to go backward; in evaluation its last chunk is the last to go forward.
    const bool last_use = evaluating ? part.position + part.length == part.row_length : part.position == 0;
    if (last_use) chains.erase({part.job, part.row});
  }
}

}  // namespace

Interpreter::Interpreter(std::shared_ptr<const Backbone> backbone, int64_t head_workspace_bytes)
    : read_tensor([](const at::Tensor& tensor) { return tensor.to(at::kCPU); }),
      stage_(std::move(backbone), head_workspace_bytes) {}

void Interpreter::run(const StepPlan& plan, std::span<JobRound> rounds) {
  rounds_.clear();
  for (JobRound& round : rounds) {
    rounds_[round.job] = &round;
    round.loss_sum = 0;
    round.labelled_tokens = round.batch->labelled_count();
    round.stepped = false;
    round.failure.clear();
    round.row_predicted.assign(round.purpose == RoundPurpose::evaluate ? round.batch->rows.size() : 0, 1);
  }
  evaluating_ = !rounds.empty() && rounds.front().purpose == RoundPurpose::evaluate;
  try {
    run_actions(plan);
    unread_.read(read_tensor);
  } catch (...) {
    live_.clear();
    chains_.clear();
    if (unread_.has_steps()) unread_.read(read_tensor);  // which jobs had stepped
    unread_.clear();
    for (JobRound& round : rounds) {
      if (round.adapter == nullptr || round.stepped) continue;
      for (Parameter& parameter : round.adapter->parameters()) parameter.gradient.zero_();
    }
    throw;
  }
}

void Interpreter::run_actions(const StepPlan& plan) {
  try {
    for (const Action& action : plan.actions) {
      switch (action.kind) {
        case ActionKind::forward: forward(plan, action); break;
        case ActionKind::recompute:
          if (!evaluating_) recompute(action);
          break;
        case ActionKind::backward:
          if (!evaluating_) backward(action);
          break;
        case ActionKind::optimizer_step:
          if (!evaluating_) step(action);
          break;
        case ActionKind::free: {
          const auto index = static_cast<size_t>(action.microbatch);
          free_chains(plan.microbatches[index], chains_, evaluating_);
          live_.erase(action.microbatch);
          break;
        }
        default:
          COTUNE_CHECK(false, "a plan for one rank has no {} action", to_string(action.kind));
      }
    }
  } catch (const c10::OutOfMemoryError& error) {
    throw MemoryLimitExceeded(error.what_without_backtrace());
  }
}

void Interpreter::forward(const StepPlan& plan, const Action& action) {
  const Backbone& model = stage_.backbone();
  Live& live = live_[action.microbatch];
  COTUNE_CHECK(live.state == nullptr, "microbatch {} goes forward twice", action.microbatch);
  live.state = std::make_unique<MicrobatchState>(make_microbatch_state(
      plan.microbatches[static_cast<size_t>(action.microbatch)], plan.policy.layout, rounds_, chains_,
      model.config().layer_count, model.attention_shape(), model.compute(), model.device()));
  MicrobatchState& state = *live.state;
  live.forward = stage_.operators(state, evaluating_ ? Direction::evaluate : Direction::forward);
  for (const Operator& op : live.forward) {
    stage_.execute(op, state);
    if (op.kind == OperatorKind::loss_head) unread_.take_head(state);
    if (op.kind != OperatorKind::down_proj) continue;
    LayerRecord& record = state.layers[static_cast<size_t>(op.layer)];
    if (!op.keeps) {
      record = LayerRecord{.sites = std::move(record.sites)};
    } else if (plan.policy.recompute) {
      keep_input_only(record);
    }
  }
  state.hidden.reset();
  state.x.reset();
  if (evaluating_) {
    live.state.reset();
    live_.erase(action.microbatch);
  } else {
    live.backward = stage_.operators(state, Direction::backward);
  }
}

void Interpreter::recompute(const Action& action) {
  Live& live = live_.at(action.microbatch);
  MicrobatchState& state = *live.state;
  for (int64_t layer = action.first_layer; layer < action.last_layer; ++layer) {
    state.hidden = state.layers[static_cast<size_t>(layer)].input;
    for (const Operator& op : live.forward) {
      // The layer's output is not needed again, only what its adapters keep.
      const bool needed = op.kind != OperatorKind::down_proj || !op.adapters.empty();
      if (op.layer == layer && needed) stage_.execute(op, state);
    }
  }
  state.hidden.reset();
  state.x.reset();
  state.final_hidden.reset();  // the head has been; the last layer's down_proj makes its input anew
}

void Interpreter::backward(const Action& action) {
  Live& live = live_.at(action.microbatch);
  const int64_t layer_count = stage_.backbone().config().layer_count;
  int64_t previous = -1;
  for (const Operator& op : live.backward) {
    if (!in_range(op, action, layer_count)) continue;
    if (op.layer != previous && previous >= 0) live.state->layers[static_cast<size_t>(previous)] = {};
    previous = op.layer;
    stage_.execute(op, *live.state);
    if (op.kind != OperatorKind::head) continue;
    unread_.take_head(*live.state);
    live.state->final_hidden.reset();
  }
  if (previous >= 0) live.state->layers[static_cast<size_t>(previous)] = {};
}

void Interpreter::step(const Action& action) {
  JobRound& round = *rounds_.at(action.job);
  if (round.purpose != RoundPurpose::train) return;
  if (steps_on_host(*round.adapter)) unread_.read(read_tensor);
  optimizer_step(round, unread_);
}

}  // namespace cotune
