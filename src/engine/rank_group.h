#pragma once

#include <functional>
#include <span>
#include <vector>

#include "adapter/adapter.h"
#include "base/error.h"
#include "engine/job_round.h"
#include "engine/rank_progress.h"
#include "engine/rank_times.h"
#include "schedule/pipeline/replica_plans.h"

namespace cotune {

/// The ranks of a run as it calls them: those of a pipeline, or of several that are replicas of the model, one replica after the other.
/// They are threads of this process (rank_threads.h), or processes of which this one is the first (rank_leader.h). One thread calls.
class RankGroup {
 public:
  virtual ~RankGroup() = default;

  virtual std::span<const PipelineLayout> layouts() const = 0;  ///< of the replicas, at least one
  const PipelineLayout& layout() const { return layouts().front(); }
  int32_t rank_count() const { return layout().rank_count(); }  ///< in the first replica's pipeline
  /// Whether ranks have memory of their own: weights of their stages, adapters of their layers.
  virtual bool are_processes() const { return false; }

  /// As Interpreter::run, on all ranks. rounds: with the whole adapters and batches. If an exception leaves, the first one that a rank
  /// threw, a job has stepped on all of its stages or on none, and gradients of those that have not are zero. Throws SystemError where a
  /// step that some stages have made cannot be made on the others: what the adapters then hold is of no use. Throws
  /// CommunicationEnded where a rank is gone: then nothing more can be asked of the group.
  virtual void run(const ReplicaPlans& plans, std::span<JobRound> rounds) = 0;
  /// Of one replica.
  void run(RankPlan plan, std::span<JobRound> rounds) {
    ReplicaPlans plans;
    plans.replicas.push_back(std::move(plan));
    run(plans, rounds);
  }

  /// Of processes, between runs: the model is divided as these layouts of replicas say from now on. Ranks let go of all adapters, so jobs are to be
  /// shared anew, and of the frozen weights that they leave to others; they read those that they lack. Bytes that weights take at most on a
  /// rank. If what a rank met with leaves as an exception (MemoryLimitExceeded, UserError, SystemError), nothing but another divide() may follow.
  /// Throws CommunicationEnded where a rank is gone or the new groups cannot be made.
  virtual int64_t divide(std::vector<PipelineLayout> /*layouts*/) { COTUNE_CHECK(false, "threads are made anew"); }

  /// Called after each operator by every rank of this process. Between runs. What it throws breaks the run off.
  virtual void observe(std::function<void(int32_t rank, const Operator&)> after_operator) = 0;

  /// What its ranks send each other to exchange a job's gradients between replicas; nothing where there is one. After share, between runs.
  virtual ExchangeMessages exchange_messages_of(int32_t /*job*/, const Adapter& /*adapter*/) { return {}; }

  /// Of the rank that calls, where somebody watches it: for what it does between runs by itself. nullptr: nobody does.
  virtual RankProgress* progress() const { return nullptr; }

  /// Of the last run.
  virtual const RankTimes& times() const = 0;

  // Ranks that are processes have the parameters of their own layers, ranks that divide layers shards of them, replicas copies:
  // these they step, and `adapter` has what it had. Threads of the only pipeline step the adapter itself.

  /// Before the job's first run, and whenever `adapter` has changed otherwise than by runs: ranks take over values, moments
  /// and structure. Throws MemoryLimitExceeded where it does not fit on a rank.
  virtual void share(int32_t /*job*/, const Adapter& /*adapter*/) {}
  /// Ranks free what they have of the job.
  virtual void forget(int32_t /*job*/) {}
  /// Brings all values and moments into `adapter`, and refreshes it.
  virtual void gather(int32_t /*job*/, Adapter& /*adapter*/) {}
  /// A selection pass has ended in `adapter` (Adapter::end_selection): ranks end it too, and what they have chosen in their
  /// layers takes the place of what it has chosen there.
  virtual void end_selection(int32_t /*job*/, Adapter& /*adapter*/, int64_t /*pass*/) {}
};

}  // namespace cotune
