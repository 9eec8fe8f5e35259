/// Which replica trains which sequences of a step (LobRA §4.3): replicas of several parallel configurations, sequences in
/// length buckets, the slowest replica decides.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/never.h"

namespace cotune {

inline constexpr double rounded_seconds = 1e-9;  ///< relative: what rounding may do to sums of seconds

/// What a bucket's sequences cost on one replica of a configuration.
struct BucketCosts {
  int64_t devices = 1;          ///< of one replica, or of all copies that are deployed as one
  int64_t copies = 1;           ///< replicas that are deployed as one, each with sequences of its own; above 1 where rows are
                                ///< dealt to single replicas (dispatch_rows.h) only
  std::vector<double> seconds;  ///< per sequence, on one replica, of buckets 0, 1, … up to the longest that fits; later ones do not
  double fill = 0;              ///< seconds to fill and drain the pipeline of a replica that has any sequence
  bool operator==(const BucketCosts&) const = default;

  size_t reach() const { return seconds.size(); }  ///< r_i: buckets 0 … reach − 1 fit
};

/// Sequences of every bucket on every configuration, all its replicas together; a replica of configuration i takes
/// ⌈d_ij / p_i⌉ of bucket j.
struct Dispatch {
  std::vector<std::vector<int64_t>> sequences;  ///< d [configuration][bucket]
  std::vector<double> seconds;                  ///< T_i = Σ_j ⌈d_ij/p_i⌉·c_ij + fill_i; 0 without sequences
  double makespan = 0;                          ///< max_i T_i
  double lower_bound = 0;                       ///< no dispatch takes less
  bool operator==(const Dispatch&) const = default;

  /// (makespan − lower bound) / makespan: by how much of itself the makespan could at most be too long.
  double gap() const { return makespan > 0 ? 1 - lower_bound / makespan : 0; }
};

struct DispatchLimits {
  double gap = 0.001;         ///< stop when the makespan is proven to be within this share of the least one
  int64_t nodes = 20'000;     ///< of the search that closes what is left of the gap; nodes, not seconds: equal inputs
                              ///< give equal plans
  int rounds = 100;           ///< of improving the bound's weights
  double cutoff = never;  ///< stop when the bound shows that no makespan is below it
};

/// LB-10, the paper's baseline: every bucket on the deployed configuration with the least device seconds per sequence that
/// can hold it; configurations that reach equally far share by the time they need. Throws InternalError for a bucket that
/// nothing deployed can hold.
Dispatch dispatch_greedily(std::span<const BucketCosts> costs, std::span<const int64_t> replicas,
                           std::span<const int64_t> sequences);

/// LB-14, Eq. 3: the dispatch of least makespan.
///   lower bound   Lagrangian: for weights w, Σ_j min_{q ≥ 0 whole, p·q ≥ B_j} Σ_i w_i·c_ij·q_i ≤ Σ_i w_i·max(0, τ − fill_i).
///                 The minima are covering knapsacks, solved exactly; w by subgradient
///                 steps. With w the device counts this is LobRA's Theorem 1, here
///                 without its assumption and with whole sequences.
///   upper bound   the covers of the best weights, improved by moving and exchanging sequences (one for one, for two, or for
///                 as many as make up for its time)
///   the rest      depth-first search over buckets and their covers whose excess over the minimum fits the gap; what it
///                 finds is improved likewise
/// Throws InternalError for a bucket that nothing deployed can hold.
Dispatch dispatch_balanced(std::span<const BucketCosts> costs, std::span<const int64_t> replicas,
                           std::span<const int64_t> sequences, const DispatchLimits& limits = {});

/// The Lagrangian bound alone, stopping early once it reaches `enough` (> 0, finite). rounds: steps of the weights.
double dispatch_lower_bound(std::span<const BucketCosts> costs, std::span<const int64_t> replicas,
                            std::span<const int64_t> sequences, int rounds, double enough);

/// Seconds of each configuration for given sequences, by the formula above.
std::vector<double> dispatch_seconds(std::span<const BucketCosts> costs, std::span<const int64_t> replicas,
                                     const std::vector<std::vector<int64_t>>& sequences);

}  // namespace cotune
