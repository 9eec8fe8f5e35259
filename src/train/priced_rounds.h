/// What training rounds were predicted to take before they ran.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "plan/cost/refitted_prices.h"
#include "plan/cost/stage_cost.h"

namespace cotune {

/// What a rank is predicted to do with its time while rounds run; what is left of it, it waits for others.
struct RankSeconds {
  double computing = 0;  ///< operators and optimizer steps
  double exposed = 0;    ///< all-reduces, slices of frozen weights on their way and sums over replicas, with nothing to compute beside them
};

/// Of one replica, as the planner prices it without corrections.
struct ReplicaPrices {
  size_t stage_count = 1;
  std::vector<StageSeconds> work;         ///< of a microbatch on a stage, all-reduces left out: [microbatch · stage_count + stage]
  std::vector<double> optimizer_s;        ///< of a job's step on a stage, by job
  std::vector<RankSeconds> ranks;         ///< by their places in the pipeline; with corrections

  const StageSeconds& at(size_t microbatch, size_t stage) const { return work[microbatch * stage_count + stage]; }
};

/// Rounds that run at once.
struct PricedRounds {
  std::vector<ReplicaPrices> replicas;
  double uncorrected_s = 0;  ///< all of them, in the order that was planned
  double corrected_s = 0;    ///< the same, with the corrections of stages that there were
  StageCorrections corrections;
};

}  // namespace cotune
