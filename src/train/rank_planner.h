#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/job_round.h"
#include "plan/cost/stage_prices.h"
#include "schedule/pipeline/rank_plan.h"
#include "train/device_costs.h"

namespace cotune {

class TrainingJob;

/// Divides the model among the ranks of a run, and orders its rounds on them by predicted times.
class RankPlanner {
 public:
  /// jobs: all of the run, for where its time goes: stages are cut by cost (balanced_stages). ranks: at most the layers.
  RankPlanner(const ModelConfig& model, std::span<const std::unique_ptr<TrainingJob>> jobs, const DeviceCosts& costs,
              const PackingPolicy& policy, int64_t ranks, RankOrder order);

  const PipelineLayout& layout() const { return layout_; }

  /// The run's next job. The model stays divided as it is.
  void add(const TrainingJob& job);

  /// Rounds that follow each other, or one evaluation. rounds: the jobs of all of them.
  RankPlan plan(std::vector<StepPlan> plans, std::span<const JobRound> rounds);

 private:
  StagePrices& prices(bool recompute);

  ModelConfig model_;
  StageMachine machine_;
  std::vector<JobShape> jobs_;   ///< by index in the run
  std::map<bool, StagePrices> prices_;  ///< by whether activations are made again
  PipelineLayout layout_;
  RankPlanOptions options_;
};

}  // namespace cotune
