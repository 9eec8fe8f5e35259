#pragma once

#include <condition_variable>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/interpreter.h"
#include "engine/job_shards.h"
#include "engine/rank_group.h"
#include "ops/memory.h"

namespace cotune {

/// A replica of the model: a pipeline of any shape with its weights.
struct ReplicaRanks {
  PipelineLayout layout;
  std::vector<std::shared_ptr<const Backbone>> parts;  ///< one for each place in a group; the whole where layers are not divided
};

/// The ranks of a run as threads of this process. Ranks of a pipeline share the backbone and the jobs' adapters, of which each
/// steps the layers of its own stages; activations and errors travel by c10d. Where the layout divides layers too (tensor
/// parallelism), rank = place in the pipeline · tensor_parallel + place in its group: ranks with equal places in their groups
/// share that part of the backbone and one shard of every adapter. Several replicas each have shards of their own, or copies where
/// layers are not divided; their ranks follow one another, and exchange gradients (gradient_exchange.h). One thread calls.
class RankThreads : public RankGroup {
 public:
  /// threads: of the computation of each rank; 0: those of the calling thread, divided.
  explicit RankThreads(std::vector<ReplicaRanks> replicas, int threads = 0);
  RankThreads(std::vector<std::shared_ptr<const Backbone>> parts, PipelineLayout layout, int threads = 0)
      : RankThreads(std::vector{ReplicaRanks{std::move(layout), std::move(parts)}}, threads) {}
  RankThreads(std::shared_ptr<const Backbone> backbone, PipelineLayout layout, int threads = 0)
      : RankThreads(std::vector{std::move(backbone)}, std::move(layout), threads) {}
  ~RankThreads() override;
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  std::span<const PipelineLayout> layouts() const override { return layouts_; }
  using RankGroup::run;
  void run(const ReplicaPlans& plans, std::span<JobRound> rounds) override;
  void observe(std::function<void(int32_t rank, const Operator&)> after_operator) override;
  ExchangeMessages exchange_messages_of(int32_t job, const Adapter& adapter) override;
  const RankTimes& times() const override { return times_; }
  /// Between runs the first rank's is the calling thread's.
  RankProgress* progress() const override { return ranks_.front()->progress.get(); }
  /// Of every rank, for who watches them (thread_watch.h).
  std::vector<std::shared_ptr<const RankProgress>> progress_of_ranks() const;

  // Where layers are divided, or there are several replicas, the ranks step shards of the adapters. Elsewhere these do nothing.
  void share(int32_t job, const Adapter& adapter) override;
  void forget(int32_t job) override;
  void gather(int32_t job, Adapter& adapter) override;
  void end_selection(int32_t job, Adapter& adapter, int64_t) override { share(job, adapter); }
  /// What ranks of that place in their groups compute with, in a replica.
  const Adapter& adapter_of(int32_t job, size_t replica, size_t part) const { return replicas_.at(replica).shards.at(part).at(job); }

 private:
  struct Replica {
    int32_t parts = 1;
    std::vector<JobShards> shards;     ///< by place in a group; none where ranks step the adapter itself
    std::list<Batch> batches;          ///< its rows of the rounds at hand
  };
  struct Rank {
    std::unique_ptr<Interpreter> interpreter;
    size_t replica = 0;
    int32_t place = 0;  ///< in its replica's pipeline
    int32_t part = 0;   ///< among those that divide its layers
    std::unique_ptr<Communicator> communicator;   ///< with its peers in the pipeline, of equal place in their groups
    std::unique_ptr<Communicator> group_communicator;
    std::unique_ptr<Communicator> exchange_communicator;  ///< of all replicas
    std::vector<GradientExchange::Step> exchanges;        ///< of the run at hand
    std::vector<JobRound> rounds;
    RankTime time;  ///< of the last run
    MemoryAccount memory;
    std::shared_ptr<RankProgress> progress = std::make_shared<RankProgress>();
    std::thread thread;
  };

  void close();
  void work(Rank& rank, int threads);
  void run_on(Rank& rank);
  void give_up(std::exception_ptr error);
  std::vector<std::vector<JobRound>> rounds_by_rank() const;
  void complete_steps();
  void make_communicators();
  const JobShards& shards_of(const Rank& rank) const { return replicas_[rank.replica].shards[static_cast<size_t>(rank.part)]; }
  bool has_shards() const { return layouts_.size() > 1 || replicas_.front().parts > 1; }
  void deal_rounds(const ReplicaPlans& plans, std::span<const JobRound> rounds);
  void deal_exchanges(const ReplicaPlans& plans, std::span<const JobRound> rounds);
  const JobExchange& exchange_of_job(int32_t job, const Adapter& whole);
  template <typename Each>
  void for_each_adapter(std::span<JobRound> rounds, Each each);

  std::vector<PipelineLayout> layouts_;
  std::vector<Replica> replicas_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::map<int32_t, JobExchange> exchanges_;  ///< by job
  RankTimes times_;
  std::function<void(int32_t rank, const Operator&)> after_operator_;

  std::mutex mutex_;
  std::condition_variable changed_;
  const ReplicaPlans* plans_ = nullptr;
  int64_t run_ = 0;       ///< counts runs
  size_t working_ = 0;    ///< ranks that have not ended the run at hand
  std::exception_ptr first_error_;
  bool closing_ = false;
  double begin_s_ = 0;    ///< in the seconds of Interpreter::spans
};

}  // namespace cotune
