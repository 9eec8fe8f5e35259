/// Hybrid tasks into buckets (MuxTune §3.4): those of a bucket interleave inside a stage's clock, buckets
/// across clocks.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "schedule/pipeline/pipeline_cluster.h"
#include "schedule/pipeline/pipeline_work.h"

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

/// What one microbatch of a bucket costs on every stage, given its tasks: with communication the makespan of
/// their interleaved subgraphs (schedule/stage/launch_order.h), else a sum.
using BucketCost = std::function<std::vector<StageCost>(std::span<const int32_t> tasks)>;

struct ChosenBuckets {
  Buckets buckets;
  double makespan_s = 0;                  ///< of one round under the structured template
  std::vector<double> makespan_of_count;  ///< [bucket count - 1]: every count's, the chosen one the least
};

/// For 1 … N buckets: balances first-stage latencies, orders the buckets by the structured template, and
/// keeps the count with the least makespan (the fewest buckets among equals). `microbatches`: of each bucket
/// in a round.
ChosenBuckets choose_buckets(std::span<const double> latencies, const BucketCost& cost, int64_t microbatches,
                             const PipelineCluster& cluster = {});

}  // namespace cotune
