#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/job_round.h"
#include "jobs/parallel.h"
#include "plan/cost/refitted_prices.h"
#include "plan/cost/stage_prices.h"
#include "schedule/pipeline/dealt_round.h"
#include "train/device_costs.h"
#include "train/followed_packing.h"
#include "train/priced_rounds.h"
#include "train/row_dispatch.h"
#include "train/thread_link.h"

namespace cotune {

class TrainingJob;

struct RankPlannerOptions {
  RankOrder order = RankOrder::automatic;
  Interleave interleave = Interleave::automatic;  ///< where ranks divide layers
  Link link = thread_link;
  // Of several replicas:
  DispatchRule dispatch = DispatchRule::balanced;
  LengthBucketing length_buckets = LengthBucketing::dynamic;
  std::vector<int64_t> longest_rows;  ///< that each takes, in tokens; 0: any
  std::vector<FollowedPacking> packing;  ///< of each; empty: all as the round
  Link exchange_link = thread_link;     ///< over which a rank sends gradients, or slices of weights, to other replicas
  bool are_processes = false;           ///< which gather each other's slices of frozen weights, where layouts say so
};

/// Plans of replicas that run at once, and how many of the rounds they are.
struct PlannedRun {
  ReplicaPlans plans;
  size_t round_count = 0;
  PricedRounds priced;
};

/// Orders the rounds of a run on its ranks by predicted times, and deals their rows to replicas where there are several.
///
/// A pipeline of P ranks whose rounds have T < P hybrid tasks (sharing temporal: jobs) waits for microbatches (mLoRA §3.2.2). Under order
/// split the steps of each are cut into lorapp_microbatches(P, T); a single one, which no number fills the pipeline with, into 4 P, where less
/// than a fifth of the time is lost. `automatic` compares rounds as they are packed with these and with twice as many
/// microbatches, and takes the shortest. What is trained does not change by it.
class RankPlanner {
 public:
  /// jobs: all of the run, by index. layouts: of the replicas.
  RankPlanner(const ModelConfig& model, std::vector<JobShape> jobs, const DeviceCosts& costs, std::vector<PipelineLayout> layouts,
              RankPlannerOptions options);

  const std::vector<JobShape>& jobs() const { return jobs_; }

  /// The run's next job. The model stays divided as it is.
  void add(const TrainingJob& job);
  /// Counts what has been done to it: as long as it stays, what was planned may run.
  int64_t changes() const { return changes_; }

  /// What is planned from now on goes by these. By replica and stage.
  void correct(StageCorrections corrections) { corrections_ = std::move(corrections); }

  /// What is planned from now on may keep so many bytes more on each rank (RankPlanOptions::spare_bytes).
  void spare(int64_t bytes);

  /// Rounds that follow each other, or one evaluation. rounds: the jobs of all of them. All in one run, unless replicas that overlap
  /// rounds would wait for each other (with_exchanges): then one after the other. exchanges: of several replicas, by job, of those whose
  /// gradients are exchanged (RankGroup::exchange_messages_of); what they take is predicted too.
  std::vector<PlannedRun> plan(std::vector<StepPlan> plans, std::span<const JobRound> rounds,
                               const std::map<int32_t, ExchangeMessages>& exchanges = {});

 private:
  /// A replica's rounds, and what they were priced at.
  struct OrderedRounds {
    RankPlan plan;
    std::vector<StageSeconds> work;  ///< ReplicaPrices::work
    double uncorrected_s = 0;
    std::vector<RankSeconds> ranks;  ///< without optimizer steps
  };

  StagePrices& prices(bool recompute);
  void add_optimizer_step(const JobShape& job);
  void fix_buckets();
  /// The plan's optimizer steps, to what its ranks do besides.
  void add_steps(size_t replica, const RankPlan& plan, std::vector<RankSeconds>& ranks) const;
  RankPlan order(size_t replica, std::vector<StepPlan> plans, std::span<const JobRound> rounds, PricedRounds& priced);
  OrderedRounds order_as_packed(size_t replica, std::vector<StepPlan> plans, std::span<const JobRound> rounds);
  /// The rounds in every way to pack them that order compares; one where there is no choice. Rounds that no split cuts further stay as they are.
  std::vector<std::vector<StepPlan>> packings(size_t replica, std::vector<StepPlan> plans) const;
  /// PackingPolicy::least_microbatches that a round is to be compared with, or cut into.
  std::vector<int64_t> splits_of(size_t replica, const StepPlan& plan) const;
  PricedRounds before_pricing() const;
  std::optional<ReplicaPlans> plan_at_once(std::span<const StepPlan> plans, std::span<const JobRound> rounds, const ExchangeCosts& exchanges,
                                           PricedRounds& priced);
  /// By job, of its optimizer step on a stage and the sums before it.
  std::vector<double> step_seconds(size_t replica) const;
  /// Seconds of steps there, as they were refitted.
  std::vector<double> corrected_steps(size_t replica, std::vector<double> seconds) const;
  WorkCorrections corrections_of(size_t replica, size_t stage) const;
  StageSeconds gathering_of(size_t replica, const StageShape& stage, const StageSeconds& computed) const;
  /// Priced by the jobs of these batches alone, not by others that came or went.
  Configuration configuration_of(size_t replica, const PackingPolicy& policy, std::span<const BatchShape> batches);
  DealtRound deal(const StepPlan& plan);
  double longest_exchange_s() const;
  PackingPolicy policy_of(size_t replica, PackingPolicy policy) const;

  ModelConfig model_;
  StageMachine machine_;
  std::vector<JobShape> jobs_;   ///< by index in the run
  std::map<bool, StagePrices> prices_;  ///< by whether activations are made again
  std::vector<PipelineLayout> layouts_;
  RankPlannerOptions options_;
  int64_t changes_ = 0;
  int64_t spare_bytes_ = 0;
  std::vector<ReplicaSeconds> step_s_;  ///< by replica
  std::vector<int64_t> borders_;       ///< fixed length buckets
  StageCorrections corrections_;
};

}  // namespace cotune
