#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/job_round.h"
#include "jobs/parallel.h"
#include "plan/cost/stage_prices.h"
#include "schedule/pipeline/rank_plan.h"
#include "train/device_costs.h"

namespace cotune {

class TrainingJob;

/// Between threads of one process, through the loopback device: 1.2 MB took 0.3 ms between two busy cores, 4 bytes 0.04.
inline constexpr Link thread_link{.latency_s = 4e-5, .bytes_per_s = 4e9};

/// Divides the model among ranks: stages are cut by cost (balanced_stages). jobs: all of the run, for where its time goes. At most
/// as many stages as layers.
PipelineLayout balanced_layout(const ModelConfig& model, std::span<const std::unique_ptr<TrainingJob>> jobs,
                               const DeviceCosts& costs, const PackingPolicy& policy, const Parallel& parallel);

/// Orders the rounds of a run on its ranks by predicted times.
class RankPlanner {
 public:
  RankPlanner(const ModelConfig& model, std::span<const std::unique_ptr<TrainingJob>> jobs, const DeviceCosts& costs,
              PipelineLayout layout, RankOrder order, const Link& link);

  /// The run's next job. The model stays divided as it is.
  void add(const TrainingJob& job);

  /// Rounds that follow each other, or one evaluation. rounds: the jobs of all of them.
  RankPlan plan(std::vector<StepPlan> plans, std::span<const JobRound> rounds);

 private:
  StagePrices& prices(bool recompute);
  void add_optimizer_step(const JobShape& job);

  ModelConfig model_;
  StageMachine machine_;
  std::vector<JobShape> jobs_;   ///< by index in the run
  std::map<bool, StagePrices> prices_;  ///< by whether activations are made again
  PipelineLayout layout_;
  RankPlanOptions options_;
};

}  // namespace cotune
