#include "engine/interpreter.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "base/error.h"
#include "engine/optimizer.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "schedule/sequence_parallel.h"

namespace cotune {
namespace {

/// Whether the operator belongs to the action's layers (action.h: -1 all; l..m those layers; L, L the head).
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

bool computes(ActionKind kind) {
  return kind == ActionKind::forward || kind == ActionKind::recompute || kind == ActionKind::backward ||
         kind == ActionKind::optimizer_step;
}

bool is_taken_in_evaluation(ActionKind kind) {
  return kind == ActionKind::forward || kind == ActionKind::free || kind == ActionKind::send_activation ||
         kind == ActionKind::receive_activation;
}

bool is_norm(const Action& message) { return message.microbatch < 0; }

std::vector<JobStep> jobs_of(const StepPlan& round, const Microbatch& microbatch) {
  std::vector<JobStep> jobs;
  for (const Atom& atom : microbatch.atoms) {
    if (!jobs.empty() && jobs.back().job == atom.job) continue;
    const auto batch = std::find_if(round.batches.begin(), round.batches.end(),
                                    [&](const BatchShape& each) { return each.job == atom.job; });
    jobs.push_back({atom.job, batch->step});
  }
  return jobs;
}

}  // namespace

Interpreter::Interpreter(std::shared_ptr<const Backbone> backbone)
    : Interpreter(backbone, one_rank(backbone->config()), 0) {}

Interpreter::Interpreter(std::shared_ptr<const Backbone> backbone, PipelineLayout layout, int32_t rank)
    : read_tensor([](const at::Tensor& tensor) { return tensor.to(at::kCPU); }),
      backbone_(std::move(backbone)),
      layout_(std::move(layout)),
      rank_(rank),
      unread_(layout_.stage_rank.back() == rank) {
  for (size_t index = 0; index < layout_.stages.size(); ++index) {
    if (layout_.stage_rank[index] != rank) continue;
    const StageShape& shape = layout_.stages[index];
    stages_.emplace(static_cast<int32_t>(index),
                    OwnStage{Stage(backbone_, shape), {shape.first_layer, shape.last_layer}, {}});
  }
  COTUNE_CHECK(!stages_.empty(), "rank {} has no stage", rank);
  if (backbone_->emulated_device() == nullptr) return;
  clock_ = std::make_unique<EmulatedClock>(*backbone_->emulated_device());
  for (auto& [index, own] : stages_) own.stage.keep_time(clock_.get());
}

void Interpreter::observe(
    const std::function<void(const Operator&, const MicrobatchState&, double seconds)>& on_operator) {
  for (auto& [index, stage] : stages_) stage.stage.on_operator = on_operator;
}

void Interpreter::run(const StepPlan& plan, std::span<JobRound> rounds) {
  try {
    begin({&plan, 1}, rounds);
    run_actions(plan.actions);
    unread_.read(read_tensor);
    clear();
  } catch (...) {
    clear();
    read_results();  // which jobs had stepped
    for (JobRound& round : rounds) {
      if (round.adapter == nullptr || round.stepped) continue;
      for (Parameter& parameter : round.adapter->parameters()) parameter.gradient.zero_();
    }
    throw;
  }
}

void Interpreter::run(const RankPlan& plan, std::span<JobRound> rounds, Communicator& communicator, TensorGroup* group,
                      GradientExchange* exchange) {
  try {
    join(group);
    exchange_ = exchange;
    if (exchange != nullptr && clock_ != nullptr) exchange->keep_time(*clock_);
    begin(plan.rounds, rounds);
    clocks_ = plan.clocks;
    messages_ = std::make_unique<RankMessages>(communicator, backbone_->config().hidden_size, backbone_->compute(),
                                               clock_ != nullptr ? at::Device(at::kCPU) : backbone_->device(), progress.get(),
                                               clock_.get());
    run_actions(plan.ranks[static_cast<size_t>(rank_)]);
    if (group != nullptr) group->settle();
    unread_.read(read_tensor);
    messages_->finish();
    clear();
  } catch (...) {
    clear();
    throw;
  }
}

void Interpreter::join(TensorGroup* group) {
  group_ = group;
  if (group != nullptr) group->keep_time(clock_.get());
  for (auto& [index, own] : stages_) own.stage.join(group);
}

void Interpreter::begin(std::span<const StepPlan> plans, std::span<JobRound> rounds) {
  rounds_.clear();
  lowest_stage_.clear();
  places_.clear();
  steps_.clear();
  spans_.clear();
  sent_spans_.clear();
  from_above_.clear();
  if (clock_ != nullptr) clock_->begin();
  if (backbone_->sharded_weights() != nullptr) gathering_begin_s_ = backbone_->sharded_weights()->waited_s();
  for (JobRound& round : rounds) {
    rounds_[{round.job, round.batch->step}] = &round;
    round.loss_sum = 0;
    round.labelled_tokens = round.labelled_of_whole.value_or(round.batch->labelled_count());
    round.stepped = false;
    round.failure.clear();
    round.emulated = clock_ != nullptr;
    if (round.emulated) round.loss_sum = round.gradient_norm = std::numeric_limits<double>::quiet_NaN();
    const size_t evaluated_rows = round.purpose == RoundPurpose::evaluate ? round.batch->rows.size() : 0;
    round.row_predicted.assign(evaluated_rows, 1);
    round.row_loss_sums.assign(evaluated_rows, 0);
  }
  evaluating_ = !rounds.empty() && rounds.front().purpose == RoundPurpose::evaluate;
  std::map<JobStep, size_t> last;
  for (const StepPlan& round : plans) {
    for (const BatchShape& batch : round.batches) {
      lowest_stage_[{batch.job, batch.step}] = layout_.stage_of(batch.lowest_layer);
    }
    for (const Microbatch& microbatch : round.microbatches) {
      Place place{.round = &round, .microbatch = &microbatch, .jobs = jobs_of(round, microbatch), .is_last = {}};
      place.lowest_stage = static_cast<int32_t>(layout_.stages.size()) - 1;
      for (const JobStep& job : place.jobs) {
        place.lowest_stage = std::min(place.lowest_stage, lowest_stage_.at(job));
        last[job] = places_.size();
      }
      places_.push_back(std::move(place));
    }
  }
  for (const auto& [step, round] : rounds_) {  // of which this replica has no rows
    if (round->adapter != nullptr) lowest_stage_.try_emplace(step, layout_.stage_of(round->adapter->lowest_layer()));
  }
  for (size_t m = 0; m < places_.size(); ++m) {
    for (const JobStep& job : places_[m].jobs) places_[m].is_last.push_back(last.at(job) == m);
  }
}

void Interpreter::clear() {
  live_.clear();
  handed_.clear();
  from_above_.clear();
  for (auto& [index, stage] : stages_) stage.chains.clear();
  waited_s_ = waited_now();
  gathering_s_ = gathering_now();
  sent_ = messages_ != nullptr ? messages_->sent() : SentMessages{};
  if (messages_ != nullptr) sent_spans_ = messages_->sent_spans();
  messages_.reset();
  join(nullptr);
  exchange_ = nullptr;
  clocks_ = {};
}

double Interpreter::waited_now() const {
  return (messages_ != nullptr ? messages_->waited_s() : 0) + (group_ != nullptr ? group_->waited_s() : 0) +
         (exchange_ != nullptr ? exchange_->waited_s() : 0) + gathering_now();
}

double Interpreter::gathering_now() const {
  return backbone_->sharded_weights() != nullptr ? backbone_->sharded_weights()->waited_s() - gathering_begin_s_ : 0;
}

void Interpreter::read_results() {
  try {
    unread_.read(read_tensor);
  } catch (const std::exception&) {  // the exception that broke the run off says more
    unread_.clear();
  }
}

void Interpreter::run_actions(std::span<const Action> actions) {
  try {
    for (size_t index = 0; index < actions.size(); ++index) {
      const Action& action = actions[index];
      action_ = index;
      if (evaluating_ && !is_taken_in_evaluation(action.kind)) continue;
      const double begin_s = now_s(), waited_s = waited_now();
      if (progress != nullptr && messages_ != nullptr) progress->begin(action, index);
      take(action);
      if (clock_ != nullptr && computes(action.kind)) clock_->settle();
      if (!computes(action.kind)) continue;
      spans_.push_back({index, begin_s + waited_now() - waited_s, now_s()});
    }
  } catch (const c10::OutOfMemoryError& error) {
    throw MemoryLimitExceeded(error.what_without_backtrace());
  }
}

void Interpreter::take(const Action& action) {
  ShardedWeights* const weights = backbone_->sharded_weights();
  if (weights != nullptr && computes(action.kind)) weights->begin_activity(action.kind, evaluating_);
  switch (action.kind) {
    case ActionKind::forward: return action.clock < 0 ? forward(action) : run_clock(action);
    case ActionKind::recompute: return recompute(action);
    case ActionKind::backward: return action.clock < 0 ? backward(action) : run_clock(action);
    case ActionKind::reduce_gradients: return reduce(action);
    case ActionKind::optimizer_step: return step(action);
    case ActionKind::free: return release(action);
    case ActionKind::receive_activation:
    case ActionKind::receive_error: return receive(action);
    case ActionKind::send_activation: return send_activation(action);
    case ActionKind::send_error: return send_error(action);
    default: COTUNE_CHECK(false, "there is no {} action in a rank's list", to_string(action.kind));
  }
}

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
  shard.divides_tokens = layout_.divides_tokens();
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
  const std::vector<int64_t> slices = token_slices(at.microbatch->token_count(), layout_.divides_tokens() ? shard().count : 1);
  const auto own = static_cast<size_t>(layout_.divides_tokens() ? shard().index : 0);
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

at::Tensor Interpreter::no_record() const {
  return at::zeros({2}, at::TensorOptions().dtype(at::kDouble).device(clock_ != nullptr ? at::kCPU : backbone_->device()));
}

at::Tensor Interpreter::known_record(const JobStep& step) const {
  const auto found = steps_.find(step);
  return found != steps_.end() && found->second.record.defined() ? found->second.record : no_record();
}

/// Of a stage and those above it, once the job's last microbatch of the step has gone backward there.
at::Tensor Interpreter::record_of(const JobStep& step, int32_t stage) {
  const JobRound& round = *rounds_.at(step);
  if (round.purpose != RoundPurpose::train) return no_record();
  const OwnStage& here = own(stage);
  if (clock_ != nullptr) return emulate_record(round, here.layers);
  const bool has_head = here.stage.shape().has_head;
  if (has_head && steps_on_host(*round.adapter)) unread_.read(read_tensor);
  if (group_ != nullptr) group_->reduce_gradients(*round.adapter, here.layers);
  const at::Tensor record = step_record(round, here.layers, has_head, unread_);
  if (group_ != nullptr) {
    // A rank leaves this only when all have come, with gradients that are the job's: whoever has a record can make the step.
    at::Tensor squares = record.narrow(0, 0, 1);
    group_->all_reduce(squares);
    group_->settle();
  }
  const auto above = from_above_.find({step, stage});
  return above == from_above_.end() ? record : record + above->second;
}

void Interpreter::reduce(const Action& action) {
  const JobStep step{action.job, action.job_step};
  JobRound& round = *rounds_.at(step);
  if (round.purpose != RoundPurpose::train) return;
  at::Tensor loss = at::zeros({}, no_record().options());
  for (auto& [index, own] : stages_) {
    if (index < lowest_stage_.at(step)) continue;
    if (group_ != nullptr) group_->reduce_gradients(*round.adapter, own.layers);
    if (clock_ != nullptr || !own.stage.shape().has_head || round.adapter->setup().shard.index > 0) continue;
    if (steps_on_host(*round.adapter)) {
      unread_.read(read_tensor);
      loss = at::scalar_tensor(round.loss_sum, at::kDouble);
    } else {
      loss = unread_.loss_sum(round);
    }
  }
  if (group_ != nullptr) group_->settle();
  exchange_->post(step, loss, action_);
}

const at::Tensor& Interpreter::whole_record(const Action& action) {
  const JobStep step{action.job, action.job_step};
  at::Tensor& record = steps_[step].record;
  if (record.defined()) return record;
  if (exchange_ != nullptr) {
    if (progress != nullptr) progress->wait_for_ranks(exchange_->ranks_of(step));
    record = exchange_->wait(step) + 0 * known_record({step.job, step.step - 1});
    if (progress != nullptr) progress->go_on();
    return record;
  }
  if (lowest_stage_.at(step) == action.stage) {
    // A step that was not made because something is not finite leaves nothing for the next one to go on from.
    return record = record_of(step, action.stage) + 0 * known_record({step.job, step.step - 1});
  }
  // It comes with the first forward message of the job's next step, or by itself.
  const JobStep next{step.job, step.step + 1};
  if (!rounds_.contains(next)) {
    return record = messages_->wait_for_norm(action.stage, step.job, step.step).records[0].clone();
  }
  // All messages of that step have it; the one that was posted first comes first, which of a chain is not the first microbatch.
  std::optional<std::pair<int64_t, int32_t>> first;
  for (size_t m = 0; m < places_.size(); ++m) {
    const std::vector<JobStep>& jobs = places_[m].jobs;
    const auto microbatch = static_cast<int32_t>(m);
    if (std::find(jobs.begin(), jobs.end(), next) == jobs.end()) continue;
    const std::optional<int64_t> number = messages_->posted_as(ActionKind::receive_activation, action.stage, microbatch);
    if (number && (!first || *number < first->first)) first = {*number, microbatch};
  }
  COTUNE_CHECK(first.has_value(), "no message brings the norm of job {}, step {}", step.job, step.step);
  const std::vector<JobStep>& jobs = places_[static_cast<size_t>(first->second)].jobs;
  const Message& message = messages_->wait(ActionKind::receive_activation, action.stage, first->second);
  return record = message.records[std::find(jobs.begin(), jobs.end(), next) - jobs.begin()].clone();
}

void Interpreter::step(const Action& action) {
  JobRound& round = *rounds_.at({action.job, action.job_step});
  if (round.purpose != RoundPurpose::train) return;
  if (messages_ == nullptr) {  // no other stage asks for it
    make_step(round, action.stage, record_of({action.job, action.job_step}, action.stage));
    return;
  }
  step_stage(round, action.stage, whole_record(action));
}

void Interpreter::step_stage(JobRound& round, int32_t stage, const at::Tensor& record) {
  make_step(round, stage, record);
  steps_[{round.job, round.batch->step}].stepped.insert(stage);
}

void Interpreter::make_step(JobRound& round, int32_t stage, const at::Tensor& record) {
  if (clock_ != nullptr) return emulate_step(round, own(stage).layers);
  optimizer_step(round, own(stage).layers, record, unread_);
}

/// The collectives of record_of.
at::Tensor Interpreter::emulate_record(const JobRound& round, const LayerRange& layers) {
  if (group_ == nullptr) return no_record();
  group_->reduce_gradients(*round.adapter, layers);
  group_->emulate(Collective::all_reduce, sizeof(double));  // squares
  return no_record();
}

void Interpreter::emulate_step(JobRound& round, const LayerRange& layers) {
  int64_t values = 0, moments = 0;
  for (const Parameter& parameter : round.adapter->parameters()) {
    if (!layers.contains(parameter.layer)) continue;
    values += parameter.value.numel();
    const int64_t own = int64_t{parameter.first_moment.defined()} + int64_t{parameter.second_moment.defined()};
    moments = std::max(moments, own);  // all of a job's parameters have as many
  }
  clock_->compute(clock_->device().optimizer_seconds(values, moments));
  round.stepped = true;
}

void Interpreter::complete_step(JobRound& round, const at::Tensor& record) {
  const JobStep step{round.job, round.batch->step};
  for (const auto& [index, stage] : stages_) {
    if (index >= lowest_stage_.at(step) && !steps_[step].stepped.contains(index)) step_stage(round, index, record);
  }
  unread_.read(read_tensor);
}

}  // namespace cotune
