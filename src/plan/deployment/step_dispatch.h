/// The rows of a step in length buckets, what they cost on each configuration, and which replica gets which.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "jobs/job.h"
#include "plan/shapes/configuration.h"
#include "plan/shapes/length_buckets.h"
#include "plan/shapes/typical_step.h"

namespace cotune {

struct StepBuckets {
  std::vector<int64_t> tokens;     ///< per bucket: its longest row, ascending
  std::vector<double> mean;        ///< per bucket: mean tokens of a row
  std::vector<int64_t> sequences;  ///< rows per bucket
  bool operator==(const StepBuckets&) const = default;
};

/// At most `buckets` of them, on a grid of a sixty-fourth of the longest row; lengths that are some
/// configuration's most tokens are borders, so that no row is kept from a replica that holds it.
StepBuckets bucket_rows(const std::vector<StepRow>& rows, int64_t buckets,
                        std::span<const Configuration> configurations);

/// As bucket_costs, with rows of their bucket's mean length under the layouts that do not pad them to the
/// longest.
std::vector<BucketCosts> step_costs(std::span<const Configuration> configurations, const StepBuckets& buckets,
                                    Layout layout);

/// The rows of every replica: replicas[i] of configuration i, one after the other. Of each bucket a
/// configuration gets as many rows as the dispatch says, spread evenly over the rows as they stand, so that
/// each job has its share everywhere; its replicas take them in turn, beginning where the last bucket left
/// off (LB-14). Rows keep their order.
std::vector<std::vector<StepRow>> deal_rows(const std::vector<StepRow>& rows, const StepBuckets& buckets,
                                            std::span<const int64_t> replicas, const Dispatch& dispatch);

}  // namespace cotune
