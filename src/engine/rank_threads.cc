#include "engine/rank_threads.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "engine/rank_results.h"
#include "engine/replica_rounds.h"
#include "ops/memory.h"
#include "ops/within_memory.h"
#include "schedule/pipeline/action_seconds.h"
#include "schedule/pipeline/rank_place.h"

namespace cotune {

RankThreads::RankThreads(std::vector<ReplicaRanks> replicas, int threads) {
  int32_t count = 0;
  for (const ReplicaRanks& replica : replicas) count += replica.layout.worker_count();
  if (threads == 0) threads = std::max(1, omp_get_max_threads() / count);
  for (ReplicaRanks& replica : replicas) {
    const int32_t parts = replica.layout.tensor_parallel();
    COTUNE_CHECK(static_cast<int32_t>(replica.parts.size()) == parts, "{} parts of a backbone for layers in {}", replica.parts.size(), parts);
    Replica& own = replicas_.emplace_back();
    own.parts = parts;
    for (int32_t place = 0; place < replica.layout.worker_count(); ++place) {
      auto rank = std::make_unique<Rank>();
      rank->replica = replicas_.size() - 1;
      rank->place = place / parts;
      rank->part = place % parts;
      rank->interpreter = std::make_unique<Interpreter>(replica.parts[static_cast<size_t>(rank->part)], replica.layout, place / parts);
      const auto index = static_cast<int32_t>(ranks_.size());
      rank->interpreter->progress = rank->progress;
      rank->interpreter->observe([this, index, own = rank.get()](const Operator& op, const MicrobatchState&, double seconds) {
        own->time.operator_seconds[to_string(op.kind)] += seconds;
        if (after_operator_) after_operator_(index, op);
      });
      ranks_.push_back(std::move(rank));
    }
    layouts_.push_back(std::move(replica.layout));
  }
  for (size_t replica = 0; has_shards() && replica < replicas_.size(); ++replica) {
    for (int32_t part = 0; part < replicas_[replica].parts; ++part) replicas_[replica].shards.emplace_back(layouts_[replica].shard_of(part));
  }
  for (int32_t rank = 0; rank < count; ++rank) {
    RankPeers peers = peers_of_rank(layouts_, rank);
    ranks_[static_cast<size_t>(rank)]->progress->join(std::move(peers.pipeline), std::move(peers.group));
  }
  make_communicators();
  try {
    for (const auto& rank : ranks_) rank->thread = std::thread([this, &rank = *rank, threads] { work(rank, threads); });
  } catch (const std::system_error& error) {
    close();
    throw SystemError(fmt::format("a thread for each of {} ranks cannot be had: {}", count, error.what()));
  } catch (...) {  // the destructor does not follow
    close();
    throw;
  }
}

RankThreads::~RankThreads() { close(); }

/// In one order: replica by replica the pipelines by place in a group, then the groups by place in the pipeline; then all.
void RankThreads::make_communicators() {
  for (size_t replica = 0; replica < replicas_.size(); ++replica) {
    const auto rank_at = [&](size_t place, size_t part) -> Rank& {
      return *ranks_[static_cast<size_t>(first_rank_of(layouts_, replica)) + place * static_cast<size_t>(replicas_[replica].parts) + part];
    };
    const int32_t parts = replicas_[replica].parts, places = layouts_[replica].rank_count();
    for (int32_t part = 0; part < parts; ++part) {
      std::vector<std::unique_ptr<Communicator>> pipeline = thread_communicators(places);
      for (size_t place = 0; place < pipeline.size(); ++place) rank_at(place, static_cast<size_t>(part)).communicator = std::move(pipeline[place]);
    }
    for (int32_t place = 0; parts > 1 && place < places; ++place) {
      std::vector<std::unique_ptr<Communicator>> group = thread_communicators(parts);
      for (size_t part = 0; part < group.size(); ++part) rank_at(static_cast<size_t>(place), part).group_communicator = std::move(group[part]);
    }
  }
  if (replicas_.size() == 1) return;
  std::vector<std::unique_ptr<Communicator>> all = thread_communicators(static_cast<int32_t>(ranks_.size()));
  for (size_t rank = 0; rank < all.size(); ++rank) ranks_[rank]->exchange_communicator = std::move(all[rank]);
}

void RankThreads::share(int32_t job, const Adapter& adapter) {
  exchanges_.erase(job);
  within_memory([&] {
    for (Replica& replica : replicas_) {
      for (JobShards& part : replica.shards) part.share(job, adapter);
    }
  });
}

void RankThreads::forget(int32_t job) {
  exchanges_.erase(job);
  for (Replica& replica : replicas_) {
    for (JobShards& part : replica.shards) part.forget(job);
  }
}

void RankThreads::gather(int32_t job, Adapter& adapter) {
  if (!has_shards()) return;
  for (const JobShards& part : replicas_.front().shards) part.gather(job, adapter);
  adapter.refresh();
}

/// The ranks' own: with their shards and their replica's rows.
void RankThreads::deal_rounds(const ReplicaPlans& plans, std::span<const JobRound> rounds) {
  std::vector<std::vector<JobRound>> dealt(replicas_.size(), {rounds.begin(), rounds.end()});
  for (size_t replica = 0; replicas_.size() > 1 && replica < replicas_.size(); ++replica) {
    std::list<Batch>& batches = replicas_[replica].batches;
    batches.clear();
    dealt[replica] = rounds_of_replica(rounds, plans.rows[replica], batches);
  }
  for (const auto& rank : ranks_) {
    const std::vector<JobRound>& own = dealt[rank->replica];
    rank->rounds = has_shards() ? shards_of(*rank).rounds_of(own) : own;
  }
}

const JobExchange& RankThreads::exchange_of_job(int32_t job, const Adapter& whole) {
  const auto found = exchanges_.find(job);
  if (found != exchanges_.end()) return found->second;
  std::vector<HeldAdapter> held;
  for (const auto& rank : ranks_) {
    const std::vector<LayerRange> layers = layers_of(layouts_, static_cast<int32_t>(held.size()));
    held.push_back({static_cast<int32_t>(rank->replica), layers, parts_of(shards_of(*rank).at(job), layers)});
  }
  return exchanges_[job] = exchange_of(whole, held);
}

ExchangeMessages RankThreads::exchange_messages_of(int32_t job, const Adapter& adapter) {
  return replicas_.size() > 1 ? exchange_of_job(job, adapter).messages : ExchangeMessages{};
}

void RankThreads::deal_exchanges(const ReplicaPlans& plans, std::span<const JobRound> rounds) {
  std::map<JobStep, size_t> place;
  for (size_t i = 0; i < rounds.size(); ++i) place[{rounds[i].job, rounds[i].batch->step}] = i;
  for (const auto& rank : ranks_) rank->exchanges.clear();
  for (const JobStep& step : plans.exchanges) {
    const JobRound& round = rounds[place.at(step)];
    if (round.purpose != RoundPurpose::train) continue;
    const JobExchange& exchange = exchange_of_job(step.job, *round.adapter);
    for (const int32_t rank : exchange.ranks) {
      Rank& own = *ranks_[static_cast<size_t>(rank)];
      own.exchanges.push_back({step, &exchange, own.rounds[place.at(step)].adapter});
    }
  }
}

/// Of the rounds that train or select: the adapters that ranks compute with.
template <typename Each>
void RankThreads::for_each_adapter(std::span<JobRound> rounds, Each each) {
  for (JobRound& round : rounds) {
    if (round.adapter == nullptr) continue;
    if (!has_shards()) {
      each(round, *round.adapter);
      continue;
    }
    for (Replica& replica : replicas_) {
      for (const JobShards& part : replica.shards) each(round, part.at(round.job));
    }
  }
}

void RankThreads::close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  for (const auto& rank : ranks_) {
    if (rank->thread.joinable()) rank->thread.join();
  }
}

void RankThreads::work(Rank& rank, int threads) {
  at::get_num_threads();  // which sets the calling thread's count to that of the process, the first time
  omp_set_num_threads(threads);
  const MemoryAccount::Scope memory(rank.memory);
  int64_t done = 0;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closing_ || run_ > done; });
      if (closing_) return;
      done = run_;
    }
    run_on(rank);
    {
      const std::lock_guard lock(mutex_);
      --working_;
    }
    changed_.notify_all();
  }
}

/// Of several errors the first one counts: the others follow from it.
void RankThreads::give_up(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    if (first_error_ == nullptr) first_error_ = std::move(error);
  }
  for (const auto& rank : ranks_) {
    for (Communicator* each : {rank->communicator.get(), rank->group_communicator.get(), rank->exchange_communicator.get()}) {
      if (each != nullptr) each->abort();
    }
  }
}

void RankThreads::run_on(Rank& rank) {
  std::optional<GradientExchange> exchange;
  const RankPlan& plan = plans_->replicas[rank.replica];
  rank.progress->begin_run();
  RankTime& time = rank.time;
  time = {};
  try {
    std::optional<TensorGroup> group;
    if (rank.group_communicator != nullptr) group.emplace(*rank.group_communicator, rank.progress.get());
    if (rank.exchange_communicator != nullptr) {
      exchange.emplace(*rank.exchange_communicator, rank.exchanges, [this](std::exception_ptr error) { give_up(std::move(error)); },
                       [&rank] { rank.progress->advance(); });
    }
    rank.interpreter->run(plan, rank.rounds, *rank.communicator, group ? &*group : nullptr,
                          exchange ? &*exchange : nullptr);
    time.collectives = group ? group->collectives() : 0;
    time.group_bytes = group ? group->sent_bytes() : 0;
    time.exposed_s = group ? group->waited_s() : 0;
    time.exchanging_s = exchange ? exchange->waited_s() : 0;
    time.exchanged_bytes = exchange ? exchange->sent_bytes() : 0;
    if (exchange) time.exchange_spans = since(begin_s_, exchange->spans());
  } catch (...) {
    give_up(std::current_exception());
  }
  exchange.reset();  // which waits for its thread
  rank.progress->end_run();
  time.seconds = rank.interpreter->ended_s() - begin_s_;
  time.waited_s = rank.interpreter->waited_s();
  time.sent = rank.interpreter->sent();
  time.peak_bytes = rank.memory.peak_bytes();
  time.spans = since(begin_s_, rank.interpreter->spans());
  time.sent_spans = since(begin_s_, rank.interpreter->sent_spans());
}

void RankThreads::run(const ReplicaPlans& plans, std::span<JobRound> rounds) {
  COTUNE_CHECK(plans.replicas.size() == replicas_.size(), "plans of {} replicas for {}", plans.replicas.size(), replicas_.size());
  for (size_t replica = 0; replica < replicas_.size(); ++replica) {
    const size_t lists = plans.replicas[replica].ranks.size();
    COTUNE_CHECK(static_cast<int32_t>(lists) == layouts_[replica].rank_count(), "a plan of {} ranks for {}", lists, layouts_[replica].rank_count());
  }
  deal_rounds(plans, rounds);
  deal_exchanges(plans, rounds);
  if (has_shards()) {
    within_memory([&] {
      for_each_adapter(rounds, [](JobRound& round, Adapter& shard) {
        if (round.purpose == RoundPurpose::select) shard.begin_selection(round.selection_pass);
      });
    });
  }
  std::vector<double> action_s;  // those that divide a stage have the same list
  for (const auto& rank : ranks_) {
    if (rank->part == 0) action_s = action_seconds(plans.replicas[rank->replica], static_cast<size_t>(rank->place), plans.longest_exchange_s);
    rank->progress->expect(action_s);
  }
  begin_s_ = ranks_.front()->interpreter->clock_s();
  restart_recent_peak();
  for (const auto& rank : ranks_) rank->memory.restart_peak();
  const int64_t bytes_before = memory_usage().live_bytes();
  {
    std::unique_lock lock(mutex_);
    plans_ = &plans;
    first_error_ = nullptr;
    working_ = ranks_.size();
    ++run_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return working_ == 0; });
  }
  std::vector<RankTime> rank_times;
  for (const auto& rank : ranks_) rank_times.push_back(std::move(rank->time));
  times_ = times_of_ranks(layouts_, std::move(rank_times));
  times_.round_bytes = memory_usage().recent_peak_live_bytes - bytes_before;
  if (first_error_ != nullptr) complete_steps();
  merge_results(layouts_, plans, rounds_by_rank(), rounds);
  if (has_shards()) {
    for_each_adapter(rounds, [](JobRound& round, Adapter& shard) {
      if (round.purpose == RoundPurpose::select) shard.add_selection_to(*round.adapter);
    });
  }
  if (first_error_ == nullptr) return;
  for_each_adapter(rounds, [](JobRound& round, Adapter& adapter) {
    if (!round.stepped) clear_gradients(adapter);
  });
  make_communicators();  // those that ended are of no more use
  std::rethrow_exception(first_error_);
}

std::vector<std::vector<JobRound>> RankThreads::rounds_by_rank() const {
  std::vector<std::vector<JobRound>> all;
  for (const auto& rank : ranks_) all.push_back(rank->rounds);
  return all;
}

/// Where memory runs out in it the adapters are left between two steps, which no smaller round mends.
void RankThreads::complete_steps() {
  try {
    within_memory([&] {
      MadeSteps made;
      for (const auto& rank : ranks_) rank->interpreter->read_results();
      for (const auto& rank : ranks_) made.merge(made_steps(*rank->interpreter));
      for (const auto& rank : ranks_) cotune::complete_steps(*rank->interpreter, made, rank->rounds);
    });
  } catch (const std::exception& error) {
    for (const auto& rank : ranks_) rank->interpreter->read_results();  // which would be taken for those of another run
    make_communicators();
    throw SystemError(fmt::format("a step that some ranks have made cannot be made on all: {}", error.what()));
  }
}

std::vector<std::shared_ptr<const RankProgress>> RankThreads::progress_of_ranks() const {
  std::vector<std::shared_ptr<const RankProgress>> all;
  for (const auto& rank : ranks_) all.push_back(rank->progress);
  return all;
}

void RankThreads::observe(std::function<void(int32_t rank, const Operator&)> after_operator) {
  after_operator_ = std::move(after_operator);
}

}  // namespace cotune
