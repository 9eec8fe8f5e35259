/// Dispatch of a step's sequences to single replicas: every replica has its own, where Eq. 3 charges each replica of a
/// configuration ⌈d_ij/p_i⌉ of every bucket (dispatch.h). With many replicas and few long sequences that charge is far too
/// high: eleven buckets of five sequences on thirty replicas cost each of them all eleven.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/deployment/dispatch.h"

namespace cotune {

/// What one replica takes.
struct ReplicaRows {
  size_t configuration = 0;
  std::vector<int64_t> sequences;  ///< per bucket
  double seconds = 0;              ///< Σ_j q_j·c_ij + fill_i; 0 without sequences
  bool operator==(const ReplicaRows&) const = default;
};

struct RowDispatch {
  std::vector<ReplicaRows> replicas;  ///< those of configuration 0 first
  double makespan = 0;
  bool operator==(const RowDispatch&) const = default;
  bool empty() const { return replicas.empty(); }
};

/// `replicas`: deployed of each configuration; BucketCosts::copies of them come of each. Longest buckets first, each sequence to the replica that has
/// it done first; then sequences are moved away from the slowest replica, or exchanged for a shorter one, two, or as many as make up for their time,
/// while it ends sooner; then a depth-first search within a number of nodes, which finds the best of all dealings where rows and replicas are few.
/// Empty where a bucket fits nothing deployed. How good it is says PatternBound (plan/deployment/pattern_bound.h), which holds for these dispatches.
RowDispatch dispatch_rows(std::span<const BucketCosts> costs, std::span<const int64_t> replicas,
                          std::span<const int64_t> sequences);

/// The same as totals by configuration; seconds are those of the slowest replica of each.
Dispatch totals_of(const RowDispatch& rows, size_t configurations, size_t buckets);

}  // namespace cotune
