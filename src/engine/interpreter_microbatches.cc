// The part of the interpreter that takes microbatches forward and backward, and hands what stages make of them to the next.
#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/interpreter.h"
#include "schedule/sequence_parallel.h"

namespace cotune {
namespace {

/// Whether the operator belongs to the action's layers (schedule/action.h: -1 all; l..m those layers; L, L the head).
bool in_range(const Operator& op, const Action& action, int64_t layer_count) {
  if (action.first_layer < 0) return true;
  if (op.kind == OperatorKind::head) return action.first_layer == layer_count;
  if (op.kind == OperatorKind::embedding) return action.first_layer == 0 && action.last_layer == 0;
  return op.layer >= action.first_layer && op.layer < action.last_layer;
}

/// With recomputation a layer keeps the stream before it alone.
void keep_stream_only(LayerRecord& record) {
  LayerRecord kept;
  kept.stream = record.stream;
  kept.sites.resize(record.sites.size());
  record = std::move(kept);
}

bool is_norm(const Action& message) { return message.microbatch < 0; }

}  // namespace

void Interpreter::forward(const Action& action) {
  Live& live = begin_forward(action.microbatch, action.stage);
  for (const Operator& op : live.forward) {
    own(action.stage).stage.execute(op, *live.state);
    end_operator(op, action.microbatch, live);
  }
  end_forward(action.microbatch, action.stage);
}

TensorShard Interpreter::shard() const {
  TensorShard shard = backbone_->shard();
  shard.is_sequence_parallel = layout_.is_sequence_parallel();
  return shard;
}

auto Interpreter::begin_forward(int32_t microbatch, int32_t stage) -> Live& {
  const Backbone& model = *backbone_;
  const Place& at = place(microbatch);
  OwnStage& here = own(stage);
  Live& live = live_[{microbatch, stage}];
  COTUNE_CHECK(live.state == nullptr, "microbatch {} goes forward twice on stage {}", microbatch, stage);
  std::map<int32_t, JobRound*> rounds;
  for (const JobStep& job : at.jobs) rounds[job.job] = rounds_.at(job);
  live.state = std::make_unique<MicrobatchState>(
      make_microbatch_state(*at.microbatch, at.round->policy.layout, rounds, here.chains, here.layers,
                            model.attention_shape(), model.compute(), model.device(), shard()));
  MicrobatchState& state = *live.state;
  if (clock_ != nullptr) state.counts = count_microbatch(*at.microbatch, state.labels.size(0));
  if (stage > 0 && is_own(stage - 1)) {
    state.hidden = std::move(handed_.extract({false, stage, microbatch}).mapped());
  } else if (stage > 0) {
    state.hidden = messages_->wait(ActionKind::receive_activation, stage, microbatch).rows;
    messages_->release(ActionKind::receive_activation, stage, microbatch);
  }
  live.forward = here.stage.operators(state, evaluating_ ? Direction::evaluate : Direction::forward);
  return live;
}

/// Of either direction, once its result is there.
void Interpreter::end_operator(const Operator& op, int32_t microbatch, Live& live) {
  MicrobatchState& state = *live.state;
  if (op.kind == OperatorKind::loss_head || op.kind == OperatorKind::head) unread_.take_head(state);
  if (op.kind == OperatorKind::head) state.final_hidden.reset();
  if (op.kind != OperatorKind::attention_norm && op.kind != OperatorKind::down_proj) return;
  const bool recomputes = op.keeps && place(microbatch).round->policy.recompute;
  LayerRecord& record = state.layers[static_cast<size_t>(op.layer)];
  if (op.kind == OperatorKind::attention_norm) {
    if (recomputes && clock_ == nullptr) record.stream = state.hidden;
  } else if (!op.keeps) {
    record = LayerRecord{.sites = std::move(record.sites)};
  } else if (recomputes) {
    keep_stream_only(record);
  }
}

void Interpreter::end_forward(int32_t microbatch, int32_t stage) {
  Live& live = live_.at({microbatch, stage});
  MicrobatchState& state = *live.state;
  const Stage& here = own(stage).stage;
  if (!here.shape().has_head) handed_[{false, stage + 1, microbatch}] = std::move(state.hidden);
  state.hidden.reset();
  state.x.reset();
  if (evaluating_ || place(microbatch).lowest_stage > stage) {
    live.state.reset();
  } else {
    live.backward = here.operators(state, Direction::backward);
  }
}

void Interpreter::recompute(const Action& action) {
  Live& live = this->live(action);
  Stage& stage = own(action.stage).stage;
  MicrobatchState& state = *live.state;
  for (int64_t layer = action.first_layer; layer < action.last_layer; ++layer) {
    state.hidden = std::move(state.layers[static_cast<size_t>(layer)].stream);
    for (const Operator& op : live.forward) {
      // The layer's output is not needed again, only what its adapters keep.
      const bool needed = op.kind != OperatorKind::down_proj || !op.adapters.empty();
      if (op.layer == layer && needed) stage.execute(op, state);
    }
  }
  state.hidden.reset();
  state.x.reset();
  state.final_hidden.reset();  // the head has been; the last layer's down_proj makes its input anew
}

void Interpreter::enter_backward(int32_t microbatch, int32_t stage, Live& live) {
  live.in_backward = true;
  const Place& at = place(microbatch);
  const int32_t above = stage + 1;
  if (own(stage).stage.shape().has_head) return;
  at::Tensor records;
  if (is_own(above)) {
    live.state->d_hidden = std::move(handed_.extract({true, stage, microbatch}).mapped());
  } else {
    const Message& message = messages_->wait(ActionKind::receive_error, stage, microbatch);
    live.state->d_hidden = message.rows;
    records = message.records.clone();
    messages_->release(ActionKind::receive_error, stage, microbatch);
  }
  for (size_t i = 0; i < at.jobs.size() && exchange_ == nullptr; ++i) {
    if (!at.is_last[i] || lowest_stage_.at(at.jobs[i]) > stage) continue;
    from_above_[{at.jobs[i], stage}] =
        records.defined() ? records[static_cast<int64_t>(i)] : record_of(at.jobs[i], above);
  }
}

void Interpreter::backward(const Action& action) {
  Live& live = this->live(action);
  Stage& stage = own(action.stage).stage;
  const int64_t layer_count = backbone_->config().layer_count;
  if (!live.in_backward) enter_backward(action.microbatch, action.stage, live);
  for (const Operator& op : live.backward) {
    if (!in_range(op, action, layer_count)) continue;
    free_layers_above(op.layer, live);
    stage.execute(op, *live.state);
    end_operator(op, action.microbatch, live);
  }
  free_layers_above(-1, live);
}

/// What the layer kept whose backward was under way before this one's. -1: there is none any more.
void Interpreter::free_layers_above(int64_t layer, Live& live) {
  if (live.layer >= 0 && live.layer != layer) live.state->layers[static_cast<size_t>(live.layer)] = {};
  live.layer = layer;
}

void Interpreter::release(const Action& action) {
  const Place& at = place(action);
  if (!evaluating_ && action.stage > at.lowest_stage && is_own(action.stage - 1)) {
    handed_[{true, action.stage - 1, action.microbatch}] = std::move(live(action).state->d_hidden);
  }
  live_.erase({action.microbatch, action.stage});
}

void Interpreter::receive(const Action& action) {
  if (is_norm(action)) {
    if (!evaluating_) messages_->post(action, 0, 1);
    return;
  }
  const Place& at = place(action);
  const std::vector<int64_t> slices = token_slices(at.microbatch->token_count(), layout_.is_sequence_parallel() ? shard().count : 1);
  const auto own = static_cast<size_t>(layout_.is_sequence_parallel() ? shard().index : 0);
  messages_->post(action, slices[own + 1] - slices[own], static_cast<int64_t>(at.jobs.size()));
}

void Interpreter::send_activation(const Action& action) {
  if (is_norm(action)) {
    if (!evaluating_) messages_->send(action, action_, {}, known_record({action.job, action.job_step}).view({1, 2}));
    return;
  }
  std::vector<at::Tensor> records;
  for (const JobStep& job : place(action).jobs) records.push_back(known_record({job.job, job.step - 1}));
  messages_->send(action, action_, handed_.extract({false, action.stage, action.microbatch}).mapped(), at::stack(records));
}

void Interpreter::send_error(const Action& action) {
  const int32_t from = action.stage + 1;
  const Place& at = place(action);
  std::vector<at::Tensor> records;
  for (size_t i = 0; i < at.jobs.size(); ++i) {
    const bool is_sent = exchange_ == nullptr && at.is_last[i] && lowest_stage_.at(at.jobs[i]) < from;
    records.push_back(is_sent ? record_of(at.jobs[i], from) : no_record());
  }
  messages_->send(action, action_, live_.at({action.microbatch, from}).state->d_hidden, at::stack(records));
}

}  // namespace cotune
