#pragma once

#include <span>
#include <vector>

#include "engine/rank_group.h"
#include "plan/cost/refitted_prices.h"
#include "schedule/pipeline/rank_plan.h"
#include "train/prediction_errors.h"
#include "train/priced_rounds.h"
#include "train/round_refit.h"

namespace cotune {

/// What one rank did of a replica's plan.
struct MeasuredRank {
  std::span<const Action> actions;
  std::span<const SimulatedSpan> spans;  ///< of those that compute; waits left out
};

/// Refits predicted seconds to those that training rounds measure, while a run goes on. Corrected are forward and backward of each stage
/// of each replica, the optimizer steps there, and what a round takes by the sum or the simulation of these (RoundRefit). The
/// first rounds, which warm up, are left out. Between rounds; one thread.
class PriceRefit {
 public:
  /// stage_counts: of the replicas.
  explicit PriceRefit(const std::vector<size_t>& stage_counts) { divide(stage_counts); }
  /// The model is divided otherwise from now on: every stage begins with what is known of the work whatever the division.
  void divide(const std::vector<size_t>& stage_counts);

  /// Some rounds that ran at once. ranks: of each replica, one for each place in its pipeline.
  void observe(const PricedRounds& priced, std::span<const std::vector<MeasuredRank>> ranks, size_t round_count, double seconds);

  const RefittedPrices& prices() const { return prices_; }
  /// Of each of some rounds, with all corrections.
  double predicted_s(const PricedRounds& priced, size_t round_count) const { return round_.predicted_s(priced, round_count); }
  const PredictionErrors& errors() const { return errors_; }
  /// Of the forwards and backwards of all microbatches that were observed, on all stages (MX-15).
  const StageSeconds& measured() const { return measured_; }

  /// RefittedPrices::whole as plans that are kept for a while go by it: it follows when the forward and backward of the mean
  /// microbatch have become least_change longer or shorter than by the one before.
  static constexpr double least_change = 0.1;
  const WorkCorrections& settled() const { return settled_; }
  /// Seconds by settled() over those without it, of the mean microbatch.
  double settled_ratio() const { return ratio_by(settled_); }

 private:
  struct Work {
    TimeRefit forward, backward, step;
    WorkCorrections fit() { return {forward.fit().correction, backward.fit().correction, step.fit().correction}; }
    void add(const StageSeconds& predicted, const StageSeconds& measured);
  };
  double ratio_by(const WorkCorrections& corrections) const;
  void add_replica(const ReplicaPrices& priced, std::vector<Work>& stages, std::span<const MeasuredRank> ranks);

  bool has_warmed_up_ = false;
  std::vector<std::vector<Work>> stages_;
  Work whole_;
  RoundRefit round_;
  StageSeconds mean_microbatch_;  ///< without corrections, of the rounds before
  WorkCorrections settled_;
  RefittedPrices prices_;
  PredictionErrors errors_;
  StageSeconds measured_;
};

}  // namespace cotune
