#include "engine/interpreter.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "ops/memory.h"
#include "ops/within_memory.h"

namespace cotune {
namespace {

bool computes(ActionKind kind) {
  return kind == ActionKind::forward || kind == ActionKind::recompute || kind == ActionKind::backward ||
         kind == ActionKind::optimizer_step;
}

bool is_taken_in_evaluation(ActionKind kind) {
  return kind == ActionKind::forward || kind == ActionKind::free || kind == ActionKind::send_activation ||
         kind == ActionKind::receive_activation;
}

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
    rethrow_within_memory();
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
    rethrow_within_memory();
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

}  // namespace cotune
