#include "schedule/pipeline/dealt_round.h"

#include "base/error.h"

namespace cotune {

std::vector<BatchShape> DealtRound::share(int32_t replica) const {
  std::vector<BatchShape> own;
  for (size_t b = 0; b < batches.size(); ++b) {
    BatchShape part = batches[b];
    part.row_lengths.clear();
    for (size_t row = 0; row < batches[b].row_lengths.size(); ++row) {
      if (replica_of[b][row] == replica) part.row_lengths.push_back(batches[b].row_lengths[row]);
    }
    if (!part.row_lengths.empty()) own.push_back(std::move(part));
  }
  return own;
}

std::vector<int32_t> DealtRound::rows_of(const JobStep& step, int32_t replica) const {
  std::vector<int32_t> rows;
  for (size_t b = 0; b < batches.size(); ++b) {
    if (batches[b].job != step.job || batches[b].step != step.step) continue;
    for (size_t row = 0; row < replica_of[b].size(); ++row) {
      if (replica_of[b][row] == replica) rows.push_back(static_cast<int32_t>(row));
    }
  }
  return rows;
}

RowShares row_shares(std::span<const DealtRound> rounds, int32_t replica) {
  RowShares shares;
  for (const DealtRound& round : rounds) {
    for (const BatchShape& batch : round.batches) {
      const JobStep step{batch.job, batch.step};
      shares[step] = round.rows_of(step, replica);
    }
  }
  return shares;
}

std::optional<ReplicaPlans> plan_replicas(std::span<const DealtRound> rounds, const PolicyOf& policy_of,
                                          std::span<const PipelineLayout> layouts, const PlanReplica& plan_replica) {
  ReplicaPlans plans;
  for (size_t replica = 0; replica < layouts.size(); ++replica) {
    const auto index = static_cast<int32_t>(replica);
    std::vector<StepPlan> own;
    for (size_t i = 0; i < rounds.size(); ++i) {
      const std::vector<BatchShape> share = rounds[i].share(index);
      if (!share.empty()) own.push_back(plan_step(share, policy_of(replica, i)));
    }
    plans.replicas.push_back(own.empty() ? idle_plan(layouts[replica]) : plan_replica(replica, std::move(own)));
    plans.rows.push_back(row_shares(rounds, index));
  }
  std::vector<std::vector<ExchangedStep>> steps;
  for (const DealtRound& round : rounds) {
    std::vector<ExchangedStep>& own = steps.emplace_back();
    for (const BatchShape& batch : round.batches) own.push_back({{batch.job, batch.step}, batch.lowest_layer});
  }
  return with_exchanges(std::move(plans), layouts, steps);
}

RankPlan idle_plan(const PipelineLayout& layout) {
  RankPlan plan;
  plan.ranks.resize(static_cast<size_t>(layout.rank_count()));
  plan.work = {.rank_count = layout.rank_count(), .stage_rank = layout.stage_rank, .jobs = {}, .microbatches = {}};
  plan.schedule.ranks.resize(plan.ranks.size());
  plan.predicted.ranks.resize(plan.ranks.size());
  return plan;
}

}  // namespace cotune
