#include "engine/rank_threads.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "engine/rank_results.h"

namespace cotune {

RankThreads::RankThreads(std::vector<std::shared_ptr<const Backbone>> backbones, PipelineLayout layout,
                         int threads)
    : layout_(std::move(layout)) {
  const int32_t count = layout_.worker_count();
  COTUNE_CHECK(static_cast<int32_t>(backbones.size()) == parts(), "{} parts of a backbone for layers in {}", backbones.size(), parts());
  if (threads == 0) threads = std::max(1, omp_get_max_threads() / count);
  for (int32_t index = 0; index < count; ++index) {
    auto rank = std::make_unique<Rank>();
    rank->part = index % parts();
    rank->interpreter =
        std::make_unique<Interpreter>(backbones[static_cast<size_t>(rank->part)], layout_, index / parts());
    rank->interpreter->observe([this, index, own = rank.get()](const Operator& op, const MicrobatchState&, double seconds) {
      own->operator_seconds[to_string(op.kind)] += seconds;
      if (after_operator_) after_operator_(index, op);
    });
    ranks_.push_back(std::move(rank));
  }
  for (int32_t part = 0; parts() > 1 && part < parts(); ++part) shards_.emplace_back(TensorShard{part, parts()});
  make_communicators();
  try {
    for (const auto& rank : ranks_) rank->thread = std::thread([this, &rank = *rank, threads] { work(rank, threads); });
  } catch (const std::system_error& error) {
    close();
    throw SystemError(fmt::format("a thread for each of {} ranks cannot be had: {}", count, error.what()));
  }
}

RankThreads::~RankThreads() { close(); }

/// In one order: the pipelines by place in a group, then the groups by place in the pipeline.
void RankThreads::make_communicators() {
  for (int32_t part = 0; part < parts(); ++part) {
    std::vector<std::unique_ptr<Communicator>> pipeline = thread_communicators(layout_.rank_count());
    for (size_t place = 0; place < pipeline.size(); ++place) {
      ranks_[place * static_cast<size_t>(parts()) + static_cast<size_t>(part)]->communicator = std::move(pipeline[place]);
    }
  }
  if (parts() == 1) return;
  for (int32_t place = 0; place < layout_.rank_count(); ++place) {
    std::vector<std::unique_ptr<Communicator>> group = thread_communicators(parts());
    for (size_t part = 0; part < group.size(); ++part) {
      ranks_[static_cast<size_t>(place * parts()) + part]->group_communicator = std::move(group[part]);
    }
  }
}

void RankThreads::share(int32_t job, const Adapter& adapter) {
  for (JobShards& part : shards_) part.share(job, adapter);
}

void RankThreads::forget(int32_t job) {
  for (JobShards& part : shards_) part.forget(job);
}

void RankThreads::gather(int32_t job, Adapter& adapter) {
  if (shards_.empty()) return;
  for (const JobShards& part : shards_) part.gather(job, adapter);
  adapter.refresh();
}

/// As this rank runs them: with its shards.
std::vector<JobRound> RankThreads::rounds_of(const Rank& rank, std::span<const JobRound> rounds) const {
  if (shards_.empty()) return {rounds.begin(), rounds.end()};
  return shards_[static_cast<size_t>(rank.part)].rounds_of(rounds);
}

/// Of the rounds that train or select: the adapters that ranks compute with.
template <typename Each>
void RankThreads::for_each_adapter(std::span<JobRound> rounds, Each each) {
  for (JobRound& round : rounds) {
    if (round.adapter == nullptr) continue;
    if (shards_.empty()) {
      each(round, *round.adapter);
    } else {
      for (const JobShards& part : shards_) each(round, part.at(round.job));
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

void RankThreads::run_on(Rank& rank) {
  try {
    std::optional<TensorGroup> group;
    if (rank.group_communicator != nullptr) group.emplace(*rank.group_communicator);
    rank.interpreter->run(*plan_, rank.rounds, *rank.communicator, group ? &*group : nullptr);
    rank.collectives = group ? group->collectives() : 0;
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      if (first_error_ == nullptr) first_error_ = std::current_exception();
    }
    for (const auto& other : ranks_) {
      other->communicator->abort();
      if (other->group_communicator != nullptr) other->group_communicator->abort();
    }
  }
  rank.ended_s = rank.interpreter->ended_s() - begin_s_;
}

void RankThreads::run(const RankPlan& plan, std::span<JobRound> rounds) {
  COTUNE_CHECK(static_cast<int32_t>(plan.ranks.size()) == layout_.rank_count(), "a plan of {} ranks for {}", plan.ranks.size(),
               layout_.rank_count());
  for (const auto& rank : ranks_) {
    rank->rounds = rounds_of(*rank, rounds);
    rank->operator_seconds.clear();
  }
  if (parts() > 1) {
    for_each_adapter(rounds, [](JobRound& round, Adapter& shard) {
      if (round.purpose == RoundPurpose::select) shard.begin_selection(round.selection_pass);
    });
  }
  begin_s_ = ranks_.front()->interpreter->clock_s();
  {
    std::unique_lock lock(mutex_);
    plan_ = &plan;
    first_error_ = nullptr;
    working_ = ranks_.size();
    ++run_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return working_ == 0; });
  }
  take_times();
  if (first_error_ != nullptr) complete_steps();
  merge(rounds);
  if (parts() > 1) {
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

void RankThreads::merge(std::span<JobRound> rounds) const {
  std::vector<std::vector<JobRound>> by_rank;
  for (const auto& rank : ranks_) by_rank.push_back(rank->rounds);
  std::vector<JobRound> merged = merged_rounds(static_cast<size_t>(layout_.stage_rank.back() * parts()), by_rank);
  for (size_t i = 0; i < rounds.size(); ++i) {
    merged[i].adapter = rounds[i].adapter;
    rounds[i] = std::move(merged[i]);
  }
}

void RankThreads::take_times() {
  times_ = {};
  for (const auto& rank : ranks_) times_.seconds = std::max(times_.seconds, rank->ended_s);
  for (const auto& rank : ranks_) {
    times_.waited.push_back(rank->interpreter->waited_s());
    times_.idle.push_back(times_.seconds - rank->ended_s);
    times_.collectives.push_back(rank->collectives);
    times_.operator_seconds.push_back(rank->operator_seconds);
    std::vector<SimulatedSpan>& spans = times_.spans.emplace_back(rank->interpreter->spans());
    for (SimulatedSpan& span : spans) {
      span.start_s -= begin_s_;
      span.end_s -= begin_s_;
    }
  }
}

void RankThreads::complete_steps() {
  MadeSteps made;
  for (const auto& rank : ranks_) rank->interpreter->read_results();
  for (const auto& rank : ranks_) made.merge(made_steps(*rank->interpreter));
  for (const auto& rank : ranks_) cotune::complete_steps(*rank->interpreter, made, rank->rounds);
}

void RankThreads::observe(std::function<void(int32_t rank, const Operator&)> after_operator) {
  after_operator_ = std::move(after_operator);
}

}  // namespace cotune
