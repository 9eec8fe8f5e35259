/// What a run takes from a plan that was made before (`cotune plan --output`) or for it (`--parallel auto`), and whether it is this
/// run's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "jobs/parallel.h"
#include "plan/fusion/fusion.h"
#include "plan/plan.h"
#include "schedule/pipeline/rank_plan.h"

namespace cotune {

/// The run that is to follow a plan.
struct FollowingRun {
  std::vector<std::string> jobs;       ///< names, in its order
  const ModelConfig* model = nullptr;  ///< nullptr: not known, and not compared
  std::string dtype;                   ///< that it computes in; "": not known
};

struct FollowedReplica {
  ReplicaDegrees degrees;    ///< longest_row: 0 where no other replica takes longer ones
  PipelineLayout layout;
  int64_t token_budget = 1024;
  HybridTasks hybrid_tasks;  ///< sharing hybrid: places in FollowingRun::jobs, each once, ascending in a task
  int64_t least_microbatches = 1;  ///< order split: PackingPolicy::least_microbatches
  /// Sharing hybrid with layers divided: of each bucket the jobs of its hybrid tasks, which run in one clock (schedule/pipeline/clocks.h).
  std::vector<std::vector<int32_t>> jobs_of_buckets;
  bool operator==(const FollowedReplica&) const = default;
};

struct FollowedPlan {
  Sharing sharing = Sharing::hybrid;
  Layout layout = Layout::ragged;
  int64_t chunk_size = 64;
  RankOrder order = RankOrder::automatic;
  Recompute recompute = Recompute::never;
  std::vector<FollowedReplica> replicas;
  bool operator==(const FollowedPlan&) const = default;

  Parallel parallel() const;
  int64_t token_budget() const;  ///< of the replica that takes most
};

/// Adds a mistake with file, field, what was found and what is accepted for each way in which the plan is not for this
/// run: other jobs (their order does not matter), another model or dtype, more than most_ranks devices, in a plan of one replica jobs that
/// stand in no hybrid task (of several replicas those have no rows there), a token budget below an atom or a chunk. The result then means nothing.
FollowedPlan follow(const Plan& plan, const FollowingRun& run, const std::string& file, Diagnostics& mistakes);

}  // namespace cotune
