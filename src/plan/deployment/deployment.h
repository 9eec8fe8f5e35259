/// How many replicas of which parallel configuration (LobRA §4.2): those whose best dispatch of an expected step ends first.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/deployment/dispatch_rows.h"

namespace cotune {

/// Which plans are looked at closely (LB-17, LB-18).
enum class PlanFilter {
  none,   ///< every plan is solved
  paper,  ///< those whose bound by greedy dispatch, Σ_i p_i·n_i·t_i / N, is at most (1 + θ) times the least are solved,
          ///< θ = 15%: can lose the optimum
  exact,  ///< those whose bound is below the best plan found so far: never loses it, and needs no θ
};

/// What a replica is taken to get of a bucket.
enum class Dealing {
  evenly,  ///< ⌈d_ij/p_i⌉, all replicas of a configuration alike: Eq. 2 to the letter
  by_row,  ///< whole sequences of its own (dispatch_rows.h): never later by much, and far sooner where replicas are many
};

struct DeploymentLimits {
  PlanFilter filter = PlanFilter::exact;
  Dealing dealing = Dealing::evenly;  ///< by_row: the filter is not used, plans are bounded by their patterns alone
  double theta = 0.15;        ///< of PlanFilter::paper
  double gap = 0.001;         ///< plans that could be better by less than this share are not looked for
  int64_t close_looks = 500;  ///< plans, in the order of their first bounds, whose bound is raised or that are solved; what
                              ///< the others leave open shows in Deployment::lower_bound
  DispatchLimits dispatch;    ///< of the best plans; the others are solved without the search for what is left of the gap
  int64_t enumerated = 5'000; ///< of PlanFilter::exact: where there are more plans, they are not listed but searched
  int64_t plans = 4'000'000;  ///< at most so many are listed, or steps of the search taken
};

/// One vector of replica counts that was considered.
struct ConsideredPlan {
  std::vector<int64_t> replicas;
  double lower_bound = 0;  ///< seconds
  double makespan = 0;     ///< seconds; 0: it was not solved, since its bound ruled it out
  bool operator==(const ConsideredPlan&) const = default;
};

struct Deployment {
  std::vector<int64_t> replicas;  ///< p_i, one per configuration; empty: nothing fits
  Dispatch dispatch;              ///< of the expected step
  RowDispatch rows;               ///< of Dealing::by_row
  double lower_bound = 0;         ///< no plan of this many devices takes less
  int64_t enumerated = 0;         ///< plans that leave no room for one more replica
  int64_t unable = 0;             ///< without a replica that holds the longest bucket
  int64_t bounded = 0;            ///< ruled out by their bound
  int64_t solved = 0;
  int64_t open = 0;               ///< neither: beyond close_looks
  bool truncated = false;         ///< there were more plans than DeploymentLimits::plans; lower_bound is 0
  std::vector<ConsideredPlan> runners_up;  ///< solved plans after the best, by makespan, at most ten
  bool operator==(const Deployment&) const = default;

  bool empty() const { return replicas.empty(); }
};

/// Up to DeploymentLimits::enumerated plans are listed, bounded and solved. Where there are more, they are searched: a bound
/// over all of them at once (plan/deployment/pattern_bound.h) gives linear cuts on the counts and a fractional plan; a whole one near
/// that is improved by exchanging replicas, and the plans that the cuts leave are walked through depth first. Limits count
/// plans and steps, never seconds: equal inputs give equal plans.
/// Eq. 2, with p from all vectors of Σ_i p_i·n_i ≤ devices that leave no room for one more replica (LB-18), each dispatched as in
/// dispatch_balanced. `sequences`: of the expected step, per bucket (⌈B·f_j⌉).
Deployment plan_deployment(std::span<const BucketCosts> costs, std::span<const int64_t> sequences, int64_t devices,
                           const DeploymentLimits& limits = {});

}  // namespace cotune
