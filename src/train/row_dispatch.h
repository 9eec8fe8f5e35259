#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "jobs/job.h"
#include "plan/deployment/step_dispatch.h"
#include "plan/shapes/job_shape.h"
#include "schedule/pipeline/dealt_round.h"

namespace cotune {

/// Deals the rows of rounds to replicas, each a configuration of its own: chunk_tokens is its token budget, longest_row the longest row that it
/// takes, chunk_seconds what its slowest stage needs for so many rows.
///   balanced  LobRA Eq. 3 (LB-14) for single replicas (plan/deployment/dispatch_rows.h): the slowest is done soonest
///   greedy    LB-10: rows go to the replicas that are cheapest for them, those that reach equally far share by time
///   even      as many rows of each length bucket to every replica that takes them (LB-9)
/// Rows stand in length buckets (LobRA §4.3, LB-20): at most 16, those that pad a round's rows least, or those of the borders that are given
/// and of what each replica takes at most.
/// Pure: equal rounds are dealt alike.
class RowDispatcher {
 public:
  /// borders: ascending; empty: each round's own.
  RowDispatcher(std::vector<Configuration> replicas, DispatchRule rule, std::vector<int64_t> borders = {});

  /// Some replica takes every row.
  DealtRound deal(std::vector<BatchShape> batches) const;

 private:
  RowDispatch dispatch(const StepBuckets& buckets, std::span<const BucketCosts> costs) const;

  std::vector<Configuration> replicas_;
  DispatchRule rule_;
  std::vector<int64_t> borders_;
};

/// Of the buckets that pad the rows of a hundred of all jobs' steps least, as their histograms have them (LobRA §4.3, at the start).
std::vector<int64_t> borders_of_jobs(std::span<const JobShape> jobs);

}  // namespace cotune
