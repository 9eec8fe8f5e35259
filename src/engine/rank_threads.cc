#include "engine/rank_threads.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <system_error>

#include "base/error.h"

namespace cotune {

RankThreads::RankThreads(std::shared_ptr<const Backbone> backbone, PipelineLayout layout, int threads)
    : layout_(std::move(layout)) {
  const int32_t count = layout_.rank_count();
  if (threads == 0) threads = std::max(1, omp_get_max_threads() / count);
  std::vector<std::unique_ptr<Communicator>> communicators = thread_communicators(count);
  for (int32_t index = 0; index < count; ++index) {
    auto rank = std::make_unique<Rank>();
    rank->interpreter = std::make_unique<Interpreter>(backbone, layout_, index);
    rank->communicator = std::move(communicators[static_cast<size_t>(index)]);
    ranks_.push_back(std::move(rank));
  }
  try {
    for (const auto& rank : ranks_) rank->thread = std::thread([this, &rank = *rank, threads] { work(rank, threads); });
  } catch (const std::system_error& error) {
    close();
    throw SystemError(fmt::format("a thread for each of {} ranks cannot be had: {}", count, error.what()));
  }
}

RankThreads::~RankThreads() { close(); }

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
    rank.interpreter->run(*plan_, rank.rounds, *rank.communicator);
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      if (first_error_ == nullptr) first_error_ = std::current_exception();
    }
    for (const auto& other : ranks_) other->communicator->abort();
  }
  rank.ended_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
}

void RankThreads::run(const RankPlan& plan, std::span<JobRound> rounds) {
  COTUNE_CHECK(plan.ranks.size() == ranks_.size(), "a plan of {} ranks for {}", plan.ranks.size(), ranks_.size());
  for (const auto& rank : ranks_) rank->rounds.assign(rounds.begin(), rounds.end());
  begin_ = std::chrono::steady_clock::now();
  {
    std::unique_lock lock(mutex_);
    plan_ = &plan;
    first_error_ = nullptr;
    working_ = ranks_.size();
    ++run_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return working_ == 0; });
  }
  times_ = {};
  const double begin_s = std::chrono::duration<double>(begin_.time_since_epoch()).count();
  for (const auto& rank : ranks_) times_.seconds = std::max(times_.seconds, rank->ended_s);
  for (const auto& rank : ranks_) {
    times_.waited.push_back(rank->interpreter->waited_s());
    times_.idle.push_back(times_.seconds - rank->ended_s);
    std::vector<SimulatedSpan>& spans = times_.spans.emplace_back(rank->interpreter->spans());
    for (SimulatedSpan& span : spans) {
      span.start_s -= begin_s;
      span.end_s -= begin_s;
    }
  }
  if (first_error_ != nullptr) complete_steps(rounds);
  merge(rounds);
  if (first_error_ == nullptr) return;
  for (JobRound& round : rounds) {
    if (round.adapter == nullptr || round.stepped) continue;
    for (Parameter& parameter : round.adapter->parameters()) parameter.gradient.zero_();
  }
  // Those that ended are of no more use.
  std::vector<std::unique_ptr<Communicator>> communicators = thread_communicators(rank_count());
  for (size_t i = 0; i < ranks_.size(); ++i) ranks_[i]->communicator = std::move(communicators[i]);
  std::rethrow_exception(first_error_);
}

/// The uppermost stage makes every job's steps and has the head: its rank knows the loss and the norm.
void RankThreads::merge(std::span<JobRound> rounds) const {
  const Rank& top = *ranks_[static_cast<size_t>(layout_.stage_rank.back())];
  for (size_t i = 0; i < rounds.size(); ++i) {
    rounds[i] = top.rounds[i];
    for (const auto& rank : ranks_) {
      const JobRound& own = rank->rounds[i];
      if (!rounds[i].failure.empty() || own.failure.empty()) continue;
      rounds[i].failure = own.failure;
      rounds[i].stepped = false;
    }
  }
}

void RankThreads::complete_steps(std::span<JobRound> rounds) {
  for (const auto& rank : ranks_) rank->interpreter->read_results();
  for (size_t i = 0; i < rounds.size(); ++i) {
    const JobStep step{rounds[i].job, rounds[i].batch->step};
    const at::Tensor* record = nullptr;
    for (const auto& rank : ranks_) {
      const auto found = rank->interpreter->steps().find(step);
      if (found != rank->interpreter->steps().end() && !found->second.stepped.empty()) record = &found->second.record;
    }
    if (record == nullptr) continue;
    const at::Tensor whole = *record;
    for (const auto& rank : ranks_) rank->interpreter->complete_step(rank->rounds[i], whole);
  }
}

void RankThreads::observe(std::function<void(int32_t rank, const Operator&, double seconds)> on_operator) {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (!on_operator) {
      ranks_[i]->interpreter->observe({});
      continue;
    }
    ranks_[i]->interpreter->observe([on_operator, rank = static_cast<int32_t>(i)](
                                        const Operator& op, const MicrobatchState&, double seconds) {
      on_operator(rank, op, seconds);
    });
  }
}

}  // namespace cotune
