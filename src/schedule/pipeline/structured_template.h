/// MuxTune's structured pipeline template (§3.4.1).
#pragma once

#include <span>

#include "schedule/pipeline/list_scheduling.h"

namespace cotune {

/// Limits per rank, as ListPolicy has them. Both empty: eager, the paper's third rule with memory to spare.
struct TemplateLimits {
  std::vector<int32_t> in_flight;
  std::vector<int64_t> kept_bytes;
};

/// Buckets (hybrid_task) in descending order of their stage latency, the microbatches of one adjacent,
/// launched as early as the limits allow; a stage takes the oldest ready backward, else the next forward of
/// that order.
ComputeOrder structured_template(const PipelineWork& work, const PipelineCluster& cluster = {},
                                 const TemplateLimits& limits = {});

/// The launch order of it: units by round, then stage latency (mean of forward and backward over stages and
/// the bucket's microbatches), descending, then as they stand.
std::vector<int32_t> descending_launch_order(const PipelineWork& work);

/// Predicted makespan with equal stages, forward as long as backward, memory to spare and no transfer time.
/// μ: stage latencies of the buckets in launch order; C: microbatches of each; S: stages. The closed forms themselves are for tests,
/// which hold them against the template; fusion estimates by the second, written for stages that are not alike (plan/fusion/fusion.cc).
///   MuxTune Lemma 1:  (S-1)μ_1 + 2C·Σμ + (S-1)μ_P
double template_makespan_lemma(std::span<const double> latencies, int64_t microbatches, int64_t stages);
///   better:           max_j (S-1)μ_1 + 2C·Σ_{i≤j} μ_i + (S-1)μ_j + C·Σ_{i>j} μ_i
/// which knows that a fast bucket queues behind a slow one's backwards; it is never above the makespan.
double template_makespan_bound(std::span<const double> latencies, int64_t microbatches, int64_t stages);

}  // namespace cotune
