/// Length buckets of a batch: boundaries that pad least (LobRA §4.3, Eq. 4; LB-20).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/shapes/length_histogram.h"

namespace cotune {

struct LengthBuckets {
  std::vector<int64_t> tokens;     ///< boundaries, ascending: a row is padded to the least that holds it
  std::vector<int64_t> sequences;  ///< rows of each bucket
  int64_t padding = 0;             ///< tokens, over all rows
  bool operator==(const LengthBuckets&) const = default;
};

struct BucketPolicy {
  int64_t buckets = 16;            ///< R: at most so many
  int64_t interval = 256;          ///< boundaries are multiples of this
  std::vector<int64_t> pinned;     ///< lengths that are boundaries in any case (the longest row of deployed configurations)
};

/// Exact: dynamic programming over the intervals that hold rows, O(rows + R·U²) for U of them. At most `buckets`
/// boundaries and the pinned ones below the longest row. No rows: no buckets.
LengthBuckets bucket_lengths(std::span<const int64_t> lengths, const BucketPolicy& policy = {});

/// Rows per bucket for given boundaries; throws InternalError for a row longer than the last.
LengthBuckets sort_into_buckets(std::span<const int64_t> lengths, std::span<const int64_t> boundaries);

/// Whole sequences per bucket of an average step, from the counts of `steps` of them. Rounding up every bucket (Eq. 2 has
/// ⌈B·f_j⌉) adds up to a sequence a bucket, most of them long; here counts from the longest bucket down are summed and then
/// rounded, so that together they are a step's. The longest bucket has at least one.
std::vector<int64_t> average_step(std::span<const int64_t> sequences, int64_t steps);

}  // namespace cotune
