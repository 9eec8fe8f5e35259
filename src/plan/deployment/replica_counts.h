/// Vectors of replica counts, and what no dispatch on them can beat.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "plan/deployment/dispatch.h"

namespace cotune {

/// Calls `visit` with every p ≥ 0 with Σ p_i·sizes_i = total, in lexicographic order, until it returns false.
void for_each_plan(std::span<const int64_t> sizes, int64_t total,
                   const std::function<bool(std::span<const int64_t>)>& visit);

/// How many of them there are; at most a quintillion.
int64_t count_plans(std::span<const int64_t> sizes, int64_t total);

/// No replica that is given a row of the longest bucket ends sooner; nor does any deployment whose devices are all
/// busy with the configuration that is cheapest for each bucket.
double least_seconds(std::span<const BucketCosts> costs, std::span<const int64_t> sequences, int64_t devices);

/// Σ_j B_j·min_i n_i·c_ij over the deployed configurations (bit i of `support`), over all devices: what no dispatch
/// can beat, by which configurations are deployed alone. Infinite where a bucket fits none.
double support_bound(std::span<const BucketCosts> costs, std::span<const int64_t> sequences, uint64_t support,
                     int64_t devices);

/// max_j min_i c_ij + fill_i over the deployed configurations: how long the sequence takes that takes longest even by itself. Infinite where a
/// bucket fits none.
double longest_alone(std::span<const BucketCosts> costs, std::span<const int64_t> sequences, uint64_t support);

/// Theorem 1 with pipelines' filling: the least τ with Σ_i p_i·n_i·max(0, τ − fill_i) ≥ the least device seconds of
/// the step.
double plan_bound(std::span<const BucketCosts> costs, std::span<const int64_t> sequences,
                  std::span<const int64_t> plan);

}  // namespace cotune
