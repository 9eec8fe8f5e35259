#pragma once

#include <map>
#include <span>
#include <vector>

#include "engine/job_round.h"
#include "plan/cost/refitted_prices.h"
#include "plan/cost/stage_prices.h"
#include "schedule/step_plan.h"
#include "train/priced_rounds.h"

namespace cotune {

class TrainingJob;

/// Predicts what a round takes on one rank, where nothing overlaps: the sum of its microbatches, its jobs' optimizer steps and, by a
/// profile, what a round takes beside them.
class RoundPrices {
 public:
  RoundPrices(const ModelConfig& model, const StageMachine& machine);
  RoundPrices(const RoundPrices&) = delete;
  RoundPrices& operator=(const RoundPrices&) = delete;

  /// The run's next job.
  void add(const TrainingJob& job);

  PricedRounds of(const StepPlan& plan, std::span<const JobRound> rounds, const WorkCorrections& corrections);

 private:
  StagePrices& prices(bool recompute);
  double beside_operators(const StepPlan& plan) const;

  ModelConfig model_;
  StageMachine machine_;
  std::vector<JobShape> jobs_;          ///< by index in the run; without lengths
  std::vector<double> optimizer_s_;
  std::map<bool, StagePrices> prices_;  ///< by whether activations are made again
};

}  // namespace cotune
