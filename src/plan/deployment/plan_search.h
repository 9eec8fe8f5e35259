/// Vectors of replica counts that are too many to list: a bound over all of them at once gives cuts on the counts, and a good
/// plan from its fractional one is improved; the plans that the cuts leave are walked through.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "plan/deployment/deployment.h"
#include "plan/deployment/dispatch_bound.h"
#include "plan/deployment/pattern_bound.h"

namespace cotune {

/// One search for one number of devices.
class PlanSearch {
 public:
  /// What is given must outlive it.
  PlanSearch(std::span<const BucketCosts> costs, std::span<const int64_t> sequences, const DeploymentLimits& limits,
             int64_t devices);

  /// Seconds that no plan takes less than; infinite where none holds every bucket. `count`: of the plans there are: as many
  /// as limits.enumerated or fewer are all looked at where rows are dealt singly.
  double run(int64_t count);

  /// Plans that were dispatched, in the order of the search.
  std::vector<ConsideredPlan>& considered() { return considered_; }
  /// 1: some are neither dispatched nor ruled out.
  int64_t open() const { return open_; }

 private:
  size_t width() const { return costs_.size(); }
  bool is_by_row() const { return limits_.dealing == Dealing::by_row; }
  double target() const { return best_ * (1 - limits_.gap); }
  /// Of few plans every one that its bound leaves room for; returns what the least of the bounds and makespans is.
  double look_at_all();
  /// Looks for plans where the relaxation's best lies; returns the seconds that no plan ends before.
  double search_near_relaxation(double least);
  /// The longest time that the relaxation rules out, from `low` on, within half the gap.
  double raised(double low);
  /// The longest time from `low` on that is ruled out because replicas of a configuration share every bucket evenly (EvenBound).
  /// The plans that are worth most at its prices are looked at, too.
  double raised_by_even_shares(double low);
  /// Whole counts near the relaxation's that use all devices.
  std::vector<int64_t> rounded(const std::vector<double>& counts) const;
  /// In lexicographic order, among the first that may be listed; empty where there is none.
  std::vector<int64_t> first_that_holds_all() const;
  /// Bounds the plan and dispatches it where the bound leaves room below the best one; true when it is the best now.
  bool look(const std::vector<int64_t>& plan);
  /// Exchanges replicas of one configuration for as many devices of another while the plan gets better.
  void improve(std::vector<int64_t> plan);
  /// Seconds that no plan outside considered_ ends before. `low`: what is known already.
  double prove(double low);
  /// per_device_[cut][i]: the most that a device of configurations i and later adds to a cut.
  void prepare_cuts();
  /// Depth-first over the counts that the cuts allow. False when it was given up.
  bool walk(size_t i, int64_t left, std::vector<int64_t>& plan, std::vector<double>& have);

  std::span<const BucketCosts> costs_;
  std::span<const int64_t> sequences_;
  const DeploymentLimits& limits_;
  int64_t devices_;
  std::vector<int64_t> sizes_;
  double best_ = never;  ///< makespan of the best plan so far
  double least_of_all_ = 0;  ///< seconds that no plan takes less than, those of considered_ among them
  std::vector<ConsideredPlan> considered_;
  std::set<std::vector<int64_t>> looked_;
  PatternBound pattern_bound_;
  CoverBound cover_bound_;
  DeviceBound cuts_;
  std::vector<std::vector<double>> per_device_;
  int64_t steps_ = 0;
  int64_t open_ = 0;
};

}  // namespace cotune
