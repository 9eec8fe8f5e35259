#include "engine/process_rank.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/steady_seconds.h"
#include "engine/replica_rounds.h"
#include "ops/memory.h"
#include "ops/within_memory.h"
#include "schedule/pipeline/weight_copies.h"

namespace cotune {

BackboneUse backbone_use_of(std::span<const PipelineLayout> layouts, int32_t rank, int64_t positions) {
  const auto [replica, worker] = place_of_rank(layouts, rank);
  const PipelineLayout& layout = layouts[replica];
  BackboneUse use{.positions = positions, .shard = layout.shard_of(worker)};
  for (size_t i = 0; i < layout.stages.size(); ++i) {
    if (layout.stage_rank[i] == layout.place_of(worker)) use.stages.push_back(layout.stages[i]);
  }
  const std::vector<int32_t> holders = ranks_with_weights_of(layouts, rank);
  use.holder = {static_cast<int32_t>(std::ranges::find(holders, rank) - holders.begin()), static_cast<int32_t>(holders.size())};
  return use;
}

ProcessRank::ProcessRank(const std::shared_ptr<const Backbone>& backbone, std::vector<PipelineLayout> layouts,
                         RankLinks links)
    : backbone_(backbone), layouts_(std::move(layouts)), links_(std::move(links)) {
  take_place();
  join();
}

ProcessRank::~ProcessRank() {
  if (ShardedWeights* const weights = backbone_->sharded_weights(); weights != nullptr) weights->leave();
}

/// In the layouts, with the weights that the backbone has.
void ProcessRank::take_place() {
  COTUNE_CHECK(links_.control->size() == rank_count_of(layouts_), "a group of {} ranks for layouts of {}",
               links_.control->size(), rank_count_of(layouts_));
  place_ = place_of_rank(layouts_, rank());
  shard_ = layouts_[place_.replica].shard_of(place_.worker);
  layers_ = layers_of(layouts_, rank());
  COTUNE_CHECK(backbone_->shard().index == shard_.index && backbone_->shard().count == shard_.count,
               "rank {} has another part of the layers than its weights", rank());
  interpreter_.emplace(backbone_, layouts_[place_.replica], pipeline_rank());
  interpreter_->progress = links_.progress;
  interpreter_->observe([this](const Operator& op, const MicrobatchState&, double seconds) {
    time_.operator_seconds[to_string(op.kind)] += seconds;
    if (after_operator) after_operator(op);
  });
}

void ProcessRank::join() {
  if (!std::exchange(shares_weights_, true)) share_weights();
  links_.join(layouts_);
}

void ProcessRank::divide(std::vector<PipelineLayout> layouts, const ChangeWeights& change_weights) {
  links_.leave();
  if (ShardedWeights* const weights = backbone_->sharded_weights(); weights != nullptr) weights->leave();
  shares_weights_ = has_begun_ = false;
  exchanges_.clear();
  interpreter_.reset();
  layouts_ = std::move(layouts);
  within_memory([&] { change_weights(backbone_use_of(layouts_, rank(), backbone_->positions())); });
  take_place();
}

/// Those whose weights are of no other rank ask for a group, too.
void ProcessRank::share_weights() {
  if (!some_share_weights(layouts_)) return;
  std::vector<int32_t> holders = ranks_with_weights_of(layouts_, rank());
  std::unique_ptr<Communicator> group = links_.new_group(holders);
  if (backbone_->sharded_weights() == nullptr) return;
  backbone_->sharded_weights()->join(std::move(group), std::move(holders), links_.progress);
}

void ProcessRank::take_work(const ReplicaPlans& plans, std::span<const JobRound> rounds, Work& work) const {
  work.plan = plans.replicas[place_.replica];
  if (layouts_.size() == 1) {
    work.rounds.assign(rounds.begin(), rounds.end());
    return;
  }
  work.rounds = rounds_of_replica(rounds, plans.rows[place_.replica], work.batches);
  std::map<JobStep, const JobRound*> own;
  for (const JobRound& round : work.rounds) own[{round.job, round.batch->step}] = &round;
  for (const JobStep& step : plans.exchanges) {
    const JobRound& round = *own.at(step);
    if (round.purpose != RoundPurpose::train) continue;
    const JobExchange& exchange = exchanges_.at(step.job);
    if (std::ranges::binary_search(exchange.ranks, rank())) work.exchanges.push_back({step, &exchange, round.adapter});
  }
}

std::exception_ptr ProcessRank::run(Work& work, const std::function<void()>& prepare) {
  time_ = {};
  has_begun_ = false;
  std::mutex mutex;
  std::exception_ptr error;  // the first one: others follow from it
  const auto give_up = [&](const std::exception_ptr& reason) {
    {
      const std::lock_guard lock(mutex);
      if (error == nullptr) error = reason;
    }
    links_.abort();
  };
  if (links_.progress != nullptr) links_.progress->begin_run();
  const double begin_s = steady_seconds();
  std::optional<TensorGroup> group;
  std::optional<GradientExchange> exchange;
  if (links_.group != nullptr) group.emplace(*links_.group, links_.progress.get());
  restart_recent_peak();
  const int64_t bytes_before = memory_usage().live_bytes();
  try {
    prepare();
    if (links_.progress != nullptr) links_.progress->expect(work.action_s);
    has_begun_ = true;
    if (links_.exchange != nullptr) {
      exchange.emplace(*links_.exchange, work.exchanges, give_up, [progress = links_.progress] {
        if (progress != nullptr) progress->advance();
      });
    }
    interpreter_->run(work.plan, work.rounds, *links_.messages, group ? &*group : nullptr, exchange ? &*exchange : nullptr);
  } catch (...) {
    give_up(std::current_exception());
    interpreter_->read_results();
  }
  if (links_.progress != nullptr) links_.progress->end_run();
  time_.seconds = steady_seconds() - begin_s;
  const MemoryUsage memory = memory_usage();
  time_.peak_bytes = memory.peak_held_bytes;
  time_.round_bytes = memory.recent_peak_live_bytes - bytes_before;
  time_.weight_bytes = memory.peak_bytes[static_cast<size_t>(MemoryKind::weights)];
  time_.whole_weight_bytes = backbone_->whole_weight_bytes();
  if (!has_begun_) return error;
  time_.waited_s = interpreter_->waited_s();
  time_.sent = interpreter_->sent();
  time_.collectives = group ? group->collectives() : 0;
  time_.group_bytes = group ? group->sent_bytes() : 0;
  time_.exposed_s = group ? group->waited_s() : 0;
  time_.gathering_s = interpreter_->gathering_s();
  if (exchange) {
    time_.exchanging_s = exchange->waited_s();
    time_.exchanged_bytes = exchange->sent_bytes();
    time_.exchange_spans = since(begin_s, exchange->spans());
    exchange.reset();  // its thread ends
  }
  time_.spans = since(begin_s, interpreter_->spans());
  time_.sent_spans = since(begin_s, interpreter_->sent_spans());
  return error;
}

MadeSteps ProcessRank::made_steps() const {
  return has_begun_ ? cotune::made_steps(*interpreter_) : MadeSteps{};
}

/// Where this rank has not even begun, no step was made anywhere of a job that has layers here.
void ProcessRank::complete_steps(const MadeSteps& made, std::span<JobRound> rounds) {
  if (has_begun_) cotune::complete_steps(*interpreter_, made, rounds);
  clear_gradients(rounds);
}

void ProcessRank::begin_selections(std::span<const JobRound> rounds) const {
  for (const JobRound& round : rounds) {
    if (round.purpose == RoundPurpose::select && round.batch->step == 0)
      round.adapter->begin_selection(round.selection_pass);
  }
}

std::vector<Adapter::NamedTensor> ProcessRank::end_selection(Adapter& adapter, int64_t pass,
                                                             const std::function<void()>& prepare) {
  try {
    if (prepare) prepare();
    if (links_.exchange == nullptr && links_.group == nullptr) return adapter.end_selection(pass);
    return adapter.end_selection(pass, [this](at::Tensor& values, int64_t layer) { sum_over_ranks(values, layer); });
  } catch (...) {
    links_.abort();
    throw;
  }
}

void ProcessRank::sum_over_ranks(at::Tensor& values, int64_t layer) {
  if (links_.exchange == nullptr) {
    links_.group->all_reduce(values);
    links_.group->settle();
  } else {
    sum_over_holders(values, layer);
  }
}

/// Of the ranks of all replicas that have the layer the first one adds, in their order.
void ProcessRank::sum_over_holders(at::Tensor& values, int64_t layer) {
  std::vector<int32_t> holders;
  for (int32_t rank = 0; rank < links_.exchange->size(); ++rank) {
    if (contains(layers_of(layouts_, rank), layer)) holders.push_back(rank);
  }
  const int32_t first = holders.front();
  if (rank() != first) {
    links_.exchange->send(values, first, Channel::activation)->wait();
    links_.exchange->receive(values, first, Channel::error)->wait();
    return;
  }
  const MemoryScope scope(MemoryKind::gradients);
  at::Tensor other = at::empty_like(values);
  for (const int32_t rank : std::span(holders).subspan(1)) {
    links_.exchange->receive(other, rank, Channel::activation)->wait();
    values += other;
  }
  for (const int32_t rank : std::span(holders).subspan(1)) links_.exchange->send(values, rank, Channel::error)->wait();
}

}  // namespace cotune
