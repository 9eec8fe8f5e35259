#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "adapter/adapter.h"
#include "base/error.h"
#include "engine/job_round.h"
#include "engine/rank_progress.h"
#include "engine/sent_messages.h"
#include "schedule/pipeline/replica_plans.h"

namespace cotune {

/// What the ranks did in a run, each element of one rank unless it says otherwise.
struct RankTimes {
  double seconds = 0;         ///< from the first rank's begin to the last one's end
  std::vector<double> waited; ///< for messages
  std::vector<double> idle;   ///< after its own end, for the others
  std::vector<size_t> first_rank = {0};  ///< of each replica
  std::vector<SentMessages> sent;    ///< to other stages
  std::vector<int64_t> collectives;  ///< among the ranks that divide its layers
  std::vector<int64_t> group_bytes;  ///< that it sent in them
  std::vector<double> exposed;       ///< of waited: for these all-reduces, with nothing to compute beside them
  std::vector<int64_t> exchanged_bytes;  ///< of gradients, sent to other ranks
  std::vector<double> gathering;     ///< of waited: for slices of frozen weights that other ranks have
  std::vector<double> exchanging;    ///< of waited: for gradients of other replicas, with nothing to compute beside their exchange
  std::vector<int64_t> weight_bytes, whole_weight_bytes;  ///< RankTime, of ranks with memory of their own; of others 0
  /// Of ranks with memory of their own: that tensors have held, so far. Of threads: that the rank's part of the run took on the host, at
  /// most; 0 without the counting allocator.
  std::vector<int64_t> peak_bytes;
  /// Of each process: bytes of tensors alive at most, beyond those before the run. Of threads one, of all of them together.
  std::vector<int64_t> round_bytes;
  std::vector<std::vector<SimulatedSpan>> spans;  ///< when it computed which action, from its begin
  std::vector<std::vector<SimulatedSpan>> sent_spans;  ///< when what it sent to other stages was under way (RankMessages::sent_spans), likewise
  std::vector<std::vector<SimulatedSpan>> exchange_spans;  ///< when it exchanged gradients with other replicas (SimulatedRank::exchanges), likewise
  std::vector<std::map<std::string, double>> operator_seconds;  ///< by operator; of a device it is the host's time, which says nothing
};

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
  /// rank. If what a rank met with leaves as an exception (MemoryLimitExceeded, UserError, SystemError), nothing but another divide() may follow. Throws CommunicationEnded
  /// where a rank is gone or the new groups cannot be made.
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
