#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
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
  std::vector<int64_t> collectives;  ///< per rank: all-reduces among the ranks that divide its layers
  std::vector<std::vector<SimulatedSpan>> spans;  ///< per rank: when it computed which action, from the begin
};

/// The ranks of a run as threads of this process. Ranks of a pipeline share the backbone and the jobs' adapters, of which each
/// steps the layers of its own stages; activations and errors travel by c10d. Where the layout divides layers too (tensor
/// parallelism), rank = place in the pipeline · tensor_parallel + place in its group: ranks with equal places in their groups
/// share that part of the backbone and one shard of every adapter. One thread calls.
class RankThreads {
 public:
  /// parts: of the backbone, one for each place in a group; the whole where layers are not divided. threads: of the
  /// computation of each rank; 0: those of the calling thread, divided.
  RankThreads(std::vector<std::shared_ptr<const Backbone>> parts, PipelineLayout layout, int threads = 0);
  RankThreads(std::shared_ptr<const Backbone> backbone, PipelineLayout layout, int threads = 0)
      : RankThreads(std::vector{std::move(backbone)}, std::move(layout), threads) {}
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

  // Where layers are divided the ranks step shards of the adapters, which have the run's results alone. Elsewhere these do nothing.

  /// Before the job's first run, and whenever `adapter` has changed otherwise than by runs: loaded, or its selection has ended.
  void share(int32_t job, const Adapter& adapter);
  void forget(int32_t job) { shards_.erase(job); }
  /// Brings values and moments into `adapter`, and refreshes it.
  void gather(int32_t job, Adapter& adapter);

 private:
  struct Rank {
    std::unique_ptr<Interpreter> interpreter;
    int32_t part = 0;  ///< its place among those that divide its layers
    std::unique_ptr<Communicator> communicator;   ///< with its peers in the pipeline, of equal place in their groups
    std::unique_ptr<Communicator> group_communicator;
    int64_t collectives = 0;
    std::vector<JobRound> rounds;
    double ended_s = 0;
    std::thread thread;
  };

  void close();
  void work(Rank& rank, int threads);
  void run_on(Rank& rank);
  void merge(std::span<JobRound> rounds) const;
  void complete_steps(std::span<JobRound> rounds);
  void make_communicators();
  int32_t parts() const { return layout_.tensor_parallel(); }
  std::vector<JobRound> rounds_of(const Rank& rank, std::span<const JobRound> rounds);
  template <typename Each>
  void for_each_adapter(std::span<JobRound> rounds, Each each);

  PipelineLayout layout_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::map<int32_t, std::vector<std::unique_ptr<Adapter>>> shards_;  ///< by job and place in a group
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
