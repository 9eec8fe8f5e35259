/// The rows of a step in length buckets, what they cost on each configuration, and which replica gets which.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "plan/deployment/configuration.h"
#include "plan/deployment/dispatch_rows.h"
#include "plan/shapes/length_buckets.h"
#include "plan/shapes/typical_step.h"

namespace cotune {

struct StepBuckets {
  std::vector<int64_t> tokens;     ///< per bucket: its longest row, ascending
  std::vector<double> mean;        ///< per bucket: mean tokens of a row
  std::vector<int64_t> sequences;  ///< rows per bucket
  bool operator==(const StepBuckets&) const = default;

  int64_t rows() const { return std::accumulate(sequences.begin(), sequences.end(), int64_t{0}); }
};

/// At most `buckets` of them, on a grid of a sixty-fourth of the longest row; lengths that are some
/// configuration's most tokens are borders, so that no row is kept from a replica that holds it.
StepBuckets bucket_rows(const std::vector<StepRow>& rows, int64_t buckets,
                        std::span<const Configuration> configurations);

/// The same with borders that are given, ascending; the longest row is one in any case.
StepBuckets bucket_rows_by(const std::vector<StepRow>& rows, std::span<const int64_t> borders, std::span<const Configuration> configurations);

/// At most so many buckets on a grid of a sixty-fourth of the longest row.
BucketPolicy bucket_policy(std::span<const int64_t> lengths, int64_t buckets);

/// The replica of every row, by its place in the dispatch: of each bucket as many as it says. They are taken as they stand, each by the
/// replica that has had the smallest part of its own, so that each job has its share everywhere.
std::vector<size_t> replicas_of_rows(const std::vector<StepRow>& rows, const StepBuckets& buckets, const RowDispatch& dispatch);

/// The rows of every replica, as replicas_of_rows has them, by job, then ascending.
std::vector<std::vector<StepRow>> deal_rows(const std::vector<StepRow>& rows, const StepBuckets& buckets,
                                            const RowDispatch& dispatch);

}  // namespace cotune
