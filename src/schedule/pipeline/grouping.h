/// Hybrid tasks into buckets (MuxTune §3.4): those of a bucket interleave inside a stage's clock, buckets
/// across clocks. How many buckets there should be is for plan/fusion/hybrid_tasks.h to say.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cotune {

/// Indices of hybrid tasks, ascending in a bucket; buckets by their first task. None is empty.
using Buckets = std::vector<std::vector<int32_t>>;

/// Eq. 7: Σ_p (Λ_p − mean)², Λ_p the sum of a bucket's latencies.
double imbalance(std::span<const double> latencies, const Buckets& buckets);

/// Least imbalance with `bucket_count` buckets: exact up to 12 tasks, by exchange above. Throws InternalError
/// unless 1 <= bucket_count <= tasks.
Buckets balanced_buckets(std::span<const double> latencies, int64_t bucket_count);

/// Longest first into the emptiest bucket, then moves of one task and exchanges of two as long as that helps.
Buckets balanced_buckets_by_exchange(std::span<const double> latencies, int64_t bucket_count);

/// Least imbalance of all that have at most two tasks in a bucket: the longest tasks alone, of the others the longest with the shortest. Throws
/// InternalError unless tasks / 2 <= bucket_count <= tasks.
Buckets balanced_pairs(std::span<const double> latencies, int64_t bucket_count);

}  // namespace cotune
