#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "train/rank_planner.h"

namespace cotune {

/// Rounds of training that follow those at hand, planned while ranks run these (LobRA §4.3: "hidden behind previous steps"). Plain
/// values: plans are pure functions of what they were made from, so they are the right ones where that is still the same, and of no use
/// elsewhere. Prices alone may have been refitted since: rounds go by those that were known when they were planned.
struct RoundsAhead {
  std::vector<StepPlan> plans;                    ///< with the batches and the policy that they were made from
  std::map<int32_t, ExchangeMessages> exchanges;  ///< with which, by which planner, `runs` were planned
  int64_t planner_changes = 0;
  std::vector<PlannedRun> runs;
  double seconds = 0;                             ///< that all of it took

  /// The plan of that round, counted from the first one; nullptr where it was made from something else.
  const StepPlan* plan_of(size_t round, const std::vector<BatchShape>& batches, const PackingPolicy& policy) const {
    if (round >= plans.size() || plans[round].batches != batches || plans[round].policy != policy) return nullptr;
    return &plans[round];
  }
};

}  // namespace cotune
