/// How many devices a step needs at least to end in time, whatever the deployment: the bound that deployments are searched
/// with (plan/deployment/deployment.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/deployment/dispatch.h"

namespace cotune {

/// Σ_i worth_i·p_i ≥ demand for the replica counts of every deployment that ends in time.
struct CountCut {
  std::vector<double> worth;
  double demand = 0;
};

struct DeviceBound {
  double devices = 0;             ///< no deployment that ends in time has fewer
  std::vector<double> replicas;   ///< of the relaxation: how many of each configuration it takes
  std::vector<CountCut> cuts;     ///< from the prices on the way, the tightest last
};

/// A replica of configuration i that ends within τ takes a *pattern* of sequences, q ≥ 0 whole with Σ_j c_ij·q_j + fill_i ≤ τ
/// and q_j ≤ B_j. Deployments are relaxed to fractional numbers λ of replicas, each with any pattern:
///   min Σ n_i·λ_iq   subject to   Σ q_j·λ_iq ≥ B_j
/// (Gilmore and Gomory's cutting stock, with several sizes of stock). Eq. 2's plans, whose replicas of a configuration
/// all take the same pattern, are among these, so the minimum bounds them. Columns are generated: the best pattern of
/// configuration i for prices π is a knapsack of value v_i(π), solved by dynamic programming over steps of time with sizes
/// rounded down; sequences too short for the steps are taken as divisible. For every π ≥ 0, optimal or not,
///   Σ_i v_i(π)·p_i ≥ Σ_j B_j·π_j   for each deployment in time, hence at least   Σ_j B_j·π_j / max_i (v_i/n_i)   devices:
/// what is proven does not rest on the linear program's arithmetic.
class PatternBound {
 public:
  PatternBound(std::span<const BucketCosts> costs, std::span<const int64_t> sequences);

  /// Ends when the bound exceeds `devices`, when it is within a ten thousandth of the relaxation's minimum, or after `rounds`
  /// of columns.
  DeviceBound least_devices(double seconds, int64_t devices, int rounds = 60);

 private:
  struct Pattern {
    size_t configuration = 0;
    std::vector<int64_t> sequences;
  };

  /// v_i(π) and a pattern that reaches it, up to rounding.
  double best_pattern(size_t configuration, double seconds, std::span<const double> prices, Pattern& pattern);

  std::span<const BucketCosts> costs_;
  std::vector<int64_t> sequences_;
  std::vector<double> table_;  ///< of best_pattern, which uses its memory again
};

}  // namespace cotune
