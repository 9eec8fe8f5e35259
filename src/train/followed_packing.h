/// What a plan made elsewhere prescribes to a run (run.plan).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/fusion/fusion.h"

namespace cotune {

/// Its hybrid tasks.
struct FollowedTasks {
  HybridTasks tasks;  ///< jobs by their index in the run
  std::string file;   ///< the plan's, for reports
};

/// How one replica packs its rows otherwise than the round.
struct FollowedPacking {
  int64_t token_budget = 0;  ///< at most; 0: the round's
  std::vector<std::vector<int32_t>> hybrid_tasks;  ///< sharing hybrid: PackingPolicy::hybrid_tasks; empty: the round's
  int64_t least_microbatches = 1;  ///< order split; 1: as it is chosen here
  std::vector<std::vector<int32_t>> jobs_of_buckets;  ///< sharing hybrid, where ranks divide layers: RankPlanOptions::jobs_of_buckets
  bool operator==(const FollowedPacking&) const = default;
};

}  // namespace cotune
