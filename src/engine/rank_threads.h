#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "engine/interpreter.h"

namespace cotune {

/// What the ranks did in a run.
struct RankTimes {
  double seconds = 0;         ///< from the first rank's begin to the last one's end
  std::vector<double> waited; ///< per rank: for messages
  std::vector<double> idle;   ///< per rank: after its own end, for the others
  std::vector<std::vector<SimulatedSpan>> spans;  ///< per rank: when it computed which action, from the begin
};

/// The ranks of a pipeline as threads of this process. They share the backbone and the jobs' adapters, of which each steps
/// the layers of its own stages; activations and errors travel by c10d. One thread calls.
class RankThreads {
 public:
  /// threads: of the computation of each rank; 0: those of the calling thread, divided.
  RankThreads(std::shared_ptr<const Backbone> backbone, PipelineLayout layout, int threads = 0);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  const PipelineLayout& layout() const { return layout_; }
  int32_t rank_count() const { return static_cast<int32_t>(ranks_.size()); }

  /// As Interpreter::run, on all ranks. If an exception leaves, the first one that a rank threw, a job has stepped on all of
  /// its stages or on none, and gradients of those that have not are zero.
  void run(const RankPlan& plan, std::span<JobRound> rounds);

  /// Called by every rank's thread after each operator. Between runs.
  void observe(std::function<void(int32_t rank, const Operator&, double seconds)> on_operator);

  const RankTimes& times() const { return times_; }

 private:
  struct Rank {
    std::unique_ptr<Interpreter> interpreter;
    std::unique_ptr<Communicator> communicator;
    std::vector<JobRound> rounds;
    double ended_s = 0;
    std::thread thread;
  };

  void close();
  void work(Rank& rank, int threads);
  void run_on(Rank& rank);
  void merge(std::span<JobRound> rounds) const;
  void complete_steps(std::span<JobRound> rounds);

  PipelineLayout layout_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  RankTimes times_;

  std::mutex mutex_;
  std::condition_variable changed_;
  const RankPlan* plan_ = nullptr;
  int64_t run_ = 0;       ///< counts runs
  size_t working_ = 0;    ///< ranks that have not ended the run at hand
  std::exception_ptr first_error_;
  bool closing_ = false;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace cotune
