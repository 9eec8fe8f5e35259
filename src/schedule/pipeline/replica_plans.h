/// Rounds of training on several replicas of the model (LobRA §2.2, LB-4): each has a pipeline of its own, of any shape, and
/// rows of its own; the gradients of a job's step are added over all of them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "schedule/pipeline/rank_plan.h"

namespace cotune {

/// A job's step on all replicas.
struct ExchangedStep {
  JobStep step;
  int64_t lowest_layer = 0;  ///< with an adapter of the job
};

/// Which rows of a job step's batch a replica has, ascending.
using RowShares = std::map<JobStep, std::vector<int32_t>>;

struct ReplicaPlans {
  std::vector<RankPlan> replicas;
  std::vector<RowShares> rows;      ///< per replica; empty where there is one, which has all rows
  /// The order in which every rank exchanges gradients, each as soon as it has posted its own; empty where there is one replica, and
  /// in evaluations.
  std::vector<JobStep> exchanges;

  double longest_exchange_s = 0;     ///< predicted, of one job's gradients

  double predicted_s() const;  ///< of the slowest replica; with what exchanges take once predict_exchanges has been called
};

/// Lets the replicas' plans exchange gradients. `rounds`: every job's steps round by round, also those of which a replica has no
/// rows. In every rank's lists, of stages from the job's lowest one up:
///   reduce_gradients  of a job's step follows its last free there (without rows: the last action of its round): its gradients are
///                     posted, and the rank goes on
///   optimizer_step    comes before the first forward of the job's next step, or at the end: it waits for the sums of all
///                     replicas, among them the squared norm and the loss
/// The messages that bring the norm alone are left out. Fills `exchanges` such that no rank waits for ever, whatever the times
/// turn out to be, where all exchange in that order. Nothing, where there is no such order: replicas whose rounds overlap in unlike
/// orders may wait for each other. A single round always has one. The schedules become such lists too; predictions stay those of
/// replicas that wait for nobody.
std::optional<ReplicaPlans> with_exchanges(ReplicaPlans plans, std::span<const PipelineLayout> layouts,
                                           std::span<const std::vector<ExchangedStep>> rounds);

/// What a job's step takes on every rank of a replica, by job, beside its microbatches.
struct ReplicaSeconds {
  std::vector<double> optimizer_s;
  std::vector<double> reduce_s;  ///< sums among the ranks that divide a layer, before gradients are posted
};

/// Predicts all replicas at once, with exchanges that steps wait for (simulate). plans: of with_exchanges, and not of an evaluation.
void predict_exchanges(ReplicaPlans& plans, std::span<const PipelineLayout> layouts, std::span<const ReplicaSeconds> seconds,
                       const PipelineCluster& cluster, const ExchangeCosts& costs);

}  // namespace cotune
