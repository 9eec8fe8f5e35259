/// A round of training whose rows are dealt to replicas of the model.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "schedule/pipeline/replica_plans.h"

namespace cotune {

struct DealtRound {
  std::vector<BatchShape> batches;               ///< of all replicas together, in job order
  std::vector<std::vector<int32_t>> replica_of;  ///< of every row of each batch

  /// What one replica has of it, its rows in their order. Jobs of which it has none are left out.
  std::vector<BatchShape> share(int32_t replica) const;
  /// Rows of the step's batch that a replica has, ascending; none where the step is not of this round.
  std::vector<int32_t> rows_of(const JobStep& step, int32_t replica) const;
};

/// Of all job steps of the rounds: the rows that a replica has.
RowShares row_shares(std::span<const DealtRound> rounds, int32_t replica);

/// Orders a replica's rounds, at least one, as plan_ranks does.
using PlanReplica = std::function<RankPlan(size_t replica, std::vector<StepPlan> rounds)>;

/// How a replica packs its share of a round.
using PolicyOf = std::function<PackingPolicy(size_t replica, size_t round)>;

/// Plans for every replica: plan_step of its share of each round, under its policy, ordered by `plan_replica`; then
/// with_exchanges. Nothing where that finds no order.
std::optional<ReplicaPlans> plan_replicas(std::span<const DealtRound> rounds, const PolicyOf& policy_of,
                                          std::span<const PipelineLayout> layouts, const PlanReplica& plan_replica);

/// Of a replica that has nothing to do.
RankPlan idle_plan(const PipelineLayout& layout);

}  // namespace cotune
