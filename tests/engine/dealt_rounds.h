/// Rounds whose rows are dealt to replicas of the model, for tests of what every group of such ranks keeps.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "engine/rank_rounds.h"

namespace cotune::testing {

/// Where ranks divide layers: microbatches run two by two, in the order that uneven_times make.
struct SideBySide {
  const ModelConfig& config;
  std::span<const JobRound> rounds;  ///< the jobs of all plans
};

/// Every row goes to a replica of its own choice; some batches go to one alone. Nothing where the rounds have no order (with_exchanges).
std::optional<ReplicaPlans> deal_at_random(std::span<const StepPlan> rounds, const RankGroup& ranks, uint64_t key,
                                           RankOrder order = RankOrder::automatic, const SideBySide* side_by_side = nullptr);

/// Deals a round so and runs it. Throws where it has no order.
void run_dealt(RankGroup& ranks, Round& round, uint64_t key);

/// Rounds that break off on rank `troubled` have made each job's step on all ranks or on none; what was not made goes through on its
/// own. backbone: of the whole model, f64.
void expect_dealt_steps_everywhere_or_nowhere(RankGroup& ranks, const std::shared_ptr<const Backbone>& backbone, int32_t troubled);

}  // namespace cotune::testing
