/// How evaluations are packed.
#pragma once

#include "schedule/step_plan.h"

namespace cotune {

/// Of evaluations in a run whose rounds are packed as `policy` says: without hybrid tasks, which are planned for rounds with a backward; and
/// under sharing batch_all as under hybrid, for all held-out rows in one microbatch are no batch of any system.
inline PackingPolicy evaluation_policy(PackingPolicy policy) {
  if (policy.sharing == Sharing::batch_all) policy.sharing = Sharing::hybrid;
  policy.hybrid_tasks.clear();
  return policy;
}

}  // namespace cotune
