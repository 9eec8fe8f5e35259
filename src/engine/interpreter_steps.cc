// The part of the interpreter that makes jobs' steps: records of gradients, their exchange, the optimizer.
#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/interpreter.h"
#include "engine/optimizer.h"

namespace cotune {

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
