#pragma once

#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/interpreter.h"
#include "engine/job_shards.h"
#include "engine/rank_group.h"

namespace cotune {

/// The ranks of a run as threads of this process. Ranks of a pipeline share the backbone and the jobs' adapters, of which each
/// steps the layers of its own stages; activations and errors travel by c10d. Where the layout divides layers too (tensor
/// parallelism), rank = place in the pipeline · tensor_parallel + place in its group: ranks with equal places in their groups
/// share that part of the backbone and one shard of every adapter. One thread calls.
class RankThreads : public RankGroup {
 public:
  /// parts: of the backbone, one for each place in a group; the whole where layers are not divided. threads: of the
  /// computation of each rank; 0: those of the calling thread, divided.
  RankThreads(std::vector<std::shared_ptr<const Backbone>> parts, PipelineLayout layout, int threads = 0);
  RankThreads(std::shared_ptr<const Backbone> backbone, PipelineLayout layout, int threads = 0)
      : RankThreads(std::vector{std::move(backbone)}, std::move(layout), threads) {}
  ~RankThreads() override;
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  const PipelineLayout& layout() const override { return layout_; }
  void run(const RankPlan& plan, std::span<JobRound> rounds) override;
  void observe(std::function<void(int32_t rank, const Operator&)> after_operator) override;
  const RankTimes& times() const override { return times_; }

  // Where layers are divided the ranks step shards of the adapters. Elsewhere these do nothing.
  void share(int32_t job, const Adapter& adapter) override;
  void forget(int32_t job) override;
  void gather(int32_t job, Adapter& adapter) override;
  void end_selection(int32_t job, Adapter& adapter, int64_t) override { share(job, adapter); }

 private:
  struct Rank {
    std::unique_ptr<Interpreter> interpreter;
    int32_t part = 0;  ///< its place among those that divide its layers
    std::unique_ptr<Communicator> communicator;   ///< with its peers in the pipeline, of equal place in their groups
    std::unique_ptr<Communicator> group_communicator;
    int64_t collectives = 0;
    std::vector<JobRound> rounds;
    std::map<std::string, double> operator_seconds;
    double ended_s = 0;
    std::thread thread;
  };

  void close();
  void work(Rank& rank, int threads);
  void run_on(Rank& rank);
  void merge(std::span<JobRound> rounds) const;
  void take_times();
  void complete_steps();
  void make_communicators();
  int32_t parts() const { return layout_.tensor_parallel(); }
  std::vector<JobRound> rounds_of(const Rank& rank, std::span<const JobRound> rounds) const;
  template <typename Each>
  void for_each_adapter(std::span<JobRound> rounds, Each each);

  PipelineLayout layout_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<JobShards> shards_;  ///< by place in a group; none where layers are not divided
  RankTimes times_;
  std::function<void(int32_t rank, const Operator&)> after_operator_;

  std::mutex mutex_;
  std::condition_variable changed_;
  const RankPlan* plan_ = nullptr;
  int64_t run_ = 0;       ///< counts runs
  size_t working_ = 0;    ///< ranks that have not ended the run at hand
  std::exception_ptr first_error_;
  bool closing_ = false;
  double begin_s_ = 0;    ///< in the seconds of Interpreter::spans
};

}  // namespace cotune
