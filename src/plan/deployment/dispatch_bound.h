/// The Lagrangian lower bound of a dispatch, and the covers it comes from. See dispatch.h for the formulas.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "plan/deployment/dispatch.h"

namespace cotune {

/// One deployed configuration.
struct DeployedCosts {
  const BucketCosts* costs = nullptr;
  int64_t replicas = 0;
};

/// Sequences per replica that cover a bucket: q with Σ_i p_i·q_i ≥ B_j.
using Cover = std::vector<int64_t>;

/// Covers of least weighted cost, bucket by bucket, and the bound on the makespan that follows. Holds its tables, so one
/// object serves many plans. At most 32 deployed configurations.
class CoverBound {
 public:
  explicit CoverBound(std::span<const int64_t> sequences);

  /// Which plan is bounded. False when a bucket with sequences fits nowhere; nothing else may be called then.
  bool deploy(std::span<const BucketCosts> costs, std::span<const int64_t> replicas);

  /// The bound for these weights (≥ 0, not all 0), one per deployed configuration.
  double evaluate(std::span<const double> weights);

  /// Of the last evaluate: the covers [bucket][configuration], their weighted costs [bucket], and their seconds on every
  /// configuration, without filling pipelines.
  std::vector<Cover> covers() const;
  const std::vector<double>& cover_costs() const { return costs_; }
  const std::vector<double>& loads() const { return loads_; }

  const std::vector<DeployedCosts>& deployed() const { return deployed_; }

 private:
  /// How a bucket is covered: `bulk_times` of one configuration, then what the bucket's table says for `rest` sequences.
  struct BucketCover {
    size_t first = 0;   ///< of the bucket's table
    size_t bulk = 0;
    int64_t bulk_times = 0;
    int64_t rest = 0;
  };

  double cover_bucket(size_t bucket, std::span<const double> weights);
  double least_makespan(std::span<const double> weights, double cost) const;
  template <typename Take>
  void walk(size_t bucket, const Take& take) const;

  std::vector<int64_t> sequences_;
  std::vector<DeployedCosts> deployed_;
  std::vector<double> costs_, loads_;
  std::vector<BucketCover> buckets_;
  std::vector<double> table_;    ///< per bucket: the least price that covers x sequences
  std::vector<uint8_t> choice_;  ///< per bucket: the configuration it takes one sequence per replica from
};

struct BestWeights {
  std::vector<double> weights;
  double bound = 0;
};

/// Raises the bound from weights by device counts: steps along the loads that the covers put on the configurations (a
/// subgradient) in units of the device counts, as long as Polyak's rule makes them for a bound of `target`, with w ≥ 0; the
/// bound depends on the proportions of the weights alone, so they are scaled back to Σ w = 1. Ends after `rounds` or when the bound reaches `target`.
/// `visit`, when it is set, is called every round and gives the next target.
BestWeights improve_weights(CoverBound& bound, int rounds, double target, const std::function<double()>& visit = nullptr);

}  // namespace cotune
