#include "train/row_dispatch.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace cotune {
namespace {

constexpr int64_t most_buckets = 16;  // LobRA's R

/// Single replicas' rows, from sequences per replica and bucket.
RowDispatch row_dispatch(const std::vector<std::vector<int64_t>>& sequences) {
  RowDispatch result;
  for (size_t replica = 0; replica < sequences.size(); ++replica) {
    result.replicas.push_back({.configuration = replica, .sequences = sequences[replica]});
  }
  return result;
}

RowDispatch dispatch_evenly(std::span<const BucketCosts> costs, std::span<const int64_t> sequences) {
  std::vector<std::vector<int64_t>> result(costs.size(), std::vector<int64_t>(sequences.size(), 0));
  std::vector<int64_t> given(costs.size(), 0);
  for (size_t j = 0; j < sequences.size(); ++j) {
    for (int64_t left = sequences[j]; left > 0; --left) {  // to the one with fewest so far
      size_t next = costs.size();
      for (size_t i = 0; i < costs.size(); ++i) {
        if (j < costs[i].reach() && (next == costs.size() || given[i] < given[next])) next = i;
      }
      ++result[next][j];
      ++given[next];
    }
  }
  return row_dispatch(result);
}

}  // namespace

RowDispatcher::RowDispatcher(std::vector<Configuration> replicas, DispatchRule rule, std::vector<int64_t> borders)
    : replicas_(std::move(replicas)), rule_(rule), borders_(std::move(borders)) {}

std::vector<int64_t> borders_of_jobs(std::span<const JobShape> jobs) {
  constexpr double steps = 100;
  std::vector<int64_t> lengths;
  for (const JobShape& job : jobs) {
    const double rows = steps * static_cast<double>(job.batch_size) / job.lengths.total();
    for (const auto& [tokens, weight] : job.lengths.weights) {
      lengths.insert(lengths.end(), static_cast<size_t>(std::max<int64_t>(1, std::llround(rows * weight))), tokens);
    }
  }
  return lengths.empty() ? lengths : bucket_lengths(lengths, bucket_policy(lengths, most_buckets)).tokens;
}

RowDispatch RowDispatcher::dispatch(const StepBuckets& buckets, std::span<const BucketCosts> costs) const {
  const std::vector<int64_t> one_each(replicas_.size(), 1);
  switch (rule_) {
    case DispatchRule::balanced: return dispatch_rows(costs, one_each, buckets.sequences);  // listed by configuration: in our order
    case DispatchRule::greedy: return row_dispatch(dispatch_greedily(costs, one_each, buckets.sequences).sequences);
    case DispatchRule::even: return dispatch_evenly(costs, buckets.sequences);
  }
  COTUNE_CHECK(false, "no such dispatch");
}

DealtRound RowDispatcher::deal(std::vector<BatchShape> batches) const {
  int64_t reach = 0;
  for (const Configuration& replica : replicas_) reach = std::max(reach, replica.reach());
  std::vector<StepRow> rows;
  for (const BatchShape& batch : batches) {
    for (size_t row = 0; row < batch.row_lengths.size(); ++row) {
      const int64_t tokens = rows.emplace_back(batch.job, batch.row_lengths[row]).tokens;
      COTUNE_CHECK(tokens <= reach, "row {} of job {} has {} tokens; the replicas take rows to {}", row, batch.job, tokens, reach);
    }
  }
  const StepBuckets buckets = borders_.empty() ? bucket_rows(rows, most_buckets, replicas_) : bucket_rows_by(rows, borders_, replicas_);
  const std::vector<BucketCosts> costs = bucket_costs(replicas_, buckets.tokens, buckets.mean);
  const std::vector<size_t> replica_of = replicas_of_rows(rows, buckets, dispatch(buckets, costs));
  DealtRound round{.batches = std::move(batches), .replica_of = {}};
  size_t next = 0;
  for (const BatchShape& batch : round.batches) {
    std::vector<int32_t>& own = round.replica_of.emplace_back();
    for (size_t row = 0; row < batch.row_lengths.size(); ++row) own.push_back(static_cast<int32_t>(replica_of[next++]));
  }
  return round;
}

}  // namespace cotune
