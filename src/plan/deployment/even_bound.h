/// How long a step takes at least where the replicas of a configuration share every bucket evenly: a bound on all deployments
/// under Eq. 2 to the letter (plan/deployment/deployment.h, Dealing::evenly).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/deployment/dispatch.h"

namespace cotune {

/// Eq. 2 charges each of the p_i replicas of a configuration for q_ij = ⌈d_ij/p_i⌉ sequences of bucket j. Together they take
/// min(p_i·q_ij, B_j) of it: a bucket of five sequences on thirty replicas costs each of them one, and yields five.
/// PatternBound, where each replica has a pattern of its own, would count thirty.
///
/// For prices π ≥ 0 of the buckets the most that p replicas of configuration i can be worth within τ is
///   V_i(p) = max { Σ_j π_j·min(p·q_j, B_j) : q ≥ 0 whole, Σ_j c_ij·q_j + fill_i ≤ τ }
/// so that τ is too short for `devices` where
///   max { Σ_i V_i(p_i) : Σ_i n_i·p_i ≤ devices } < Σ_j B_j·π_j.
/// V_i is a knapsack of at most two kinds of pieces a bucket. It is bounded by broken pieces at first, which is quick, and then
/// with whole sequences where one takes more than a sixteenth of τ: by dynamic programming over steps of time, sizes
/// rounded down. The maximum over p is a dynamic program over devices. Prices move along B_j − Σ_i min(p_i·q_ij, B_j). Nothing
/// proven depends on how they move.
class EvenBound {
 public:
  EvenBound(std::span<const BucketCosts> costs, std::span<const int64_t> sequences, int64_t devices);

  /// Whether some prices on the way show that no deployment ends within `seconds`, in so many rounds with broken sequences and
  /// then with whole ones. Prices are kept from call to call.
  bool rules_out(double seconds, int broken_rounds, int whole_rounds);

  /// Replica counts that were worth most at the last prices.
  const std::vector<int64_t>& best_plan() const { return plan_; }

 private:
  /// Sequences of a bucket that a replica takes, each of them yielding the same.
  struct Piece {
    size_t bucket = 0;
    double rate = 0;     ///< worth per second
    double seconds = 0;  ///< of all of them
    double yield = 0;    ///< sequences of all replicas together
    int64_t times = 0;
  };

  void price(size_t configuration, int64_t replicas, double seconds);
  double broken_worth(double seconds, double share);
  double whole_worth(double seconds, double share);
  double most_worth(double seconds, bool is_whole);
  bool improve_prices(double seconds, int rounds, bool is_whole);

  std::span<const BucketCosts> costs_;
  std::vector<int64_t> sequences_;
  int64_t devices_;
  std::vector<double> prices_;               ///< of a whole bucket; they sum to 1
  std::vector<Piece> pieces_;
  std::vector<std::vector<double>> values_;  ///< V_i(p), by configuration and p
  std::vector<std::vector<double>> best_;    ///< of configurations up to i on so many devices
  std::vector<std::vector<int32_t>> taken_;  ///< p_i there
  std::vector<int64_t> plan_;
  std::vector<double> yield_;                ///< of plan_, per bucket, in shares of it
  std::vector<double> table_;                ///< most worth of large sequences in so many steps of time
  std::vector<uint8_t> chosen_;
};

}  // namespace cotune
