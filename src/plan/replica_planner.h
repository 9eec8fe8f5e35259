/// The rows of one replica: its token budget and hybrid tasks, by simulation.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "plan/alternatives.h"
#include "plan/budget_search.h"
#include "plan/fusion/fusion.h"
#include "plan/plan.h"
#include "plan/plan_options.h"
#include "schedule/pipeline/grouping.h"

namespace cotune {

/// Orders for pipelines with few microbatches.
bool is_for_few(PipelineOrder order);
/// As many microbatches as leave no pipeline idle for long; 0 for one stage.
int64_t enough_microbatches(int64_t stages);
/// Whether the replica is interleaved or has its steps split, as only such an order has them.
bool suits_few(const PlannedReplica& replica);

/// All replicas stand on one kind of nodes. Remembers which hybrid tasks it found for jobs on a shape of
/// replica.
class ReplicaPlanner {
 public:
  /// What is given must outlive it.
  ReplicaPlanner(const ModelConfig& model, const ClusterSpec& cluster, const NodeGroup& group,
                 const std::vector<JobShape>& jobs, const PlanOptions& options, bool recompute)
      : model_(model), cluster_(cluster), group_(group), jobs_(jobs), options_(options), recompute_(recompute) {}

  /// How a tensor-parallel group of these nodes computes.
  StageMachine machine(int64_t tensor_parallel) const;
  /// What its stages cost.
  StagePrices& prices(int64_t tensor_parallel);

  /// This and the others that try something throw PlanningStopped.
  /// `empty`: with its stages, devices and rows, and the most tokens that fit by closed form as its budget. For
  /// each order the fastest of all budgets and hybrid tasks that fit, or, where none does, the last tried and
  /// what overflows (search_budgets). `like`: what came of a replica of the same shape with like rows of the same jobs, by order, of which it takes
  /// hybrid tasks and budget wherever they fit; none: everything is tried.
  /// A pipeline that has fewer than eight microbatches a stage is where these orders gain; a replica that they do not suit is one of
  /// `automatic` under them:
  ///   interleaved  runs of layers of equal number, two or four a rank, whichever is faster, over the budgets that leave two
  ///                to eight microbatches a stage. Layers must divide by them; not for sharded weights
  ///   split        sharing hybrid, three stages or more: of those hybrid tasks (without buckets of several) that are two or
  ///                more but fewer than the stages, each step is cut into lorapp_microbatches
  std::vector<ReplicaChoice> plan(const PlannedReplica& empty, Sharing sharing, const std::vector<PipelineOrder>& orders,
                                  const std::vector<ReplicaChoice>& like = {});
  /// Whether an order may suit replicas of so many stages, by its count of stages, shards and jobs alone.
  bool may_suit(PipelineOrder order, Sharing sharing, const Configuration& shape) const;

  /// With all jobs fused in the default order, by estimate_replica: continuous 1F1B, or where that does not fit the order that does, whether
  /// it fits or not. A fraction of the work of plan(). It must have rows.
  ReplicaChoice estimate(const PlannedReplica& empty);

  /// What plan() tries for the hybrid tasks of a replica of a plan, with its token budget: each with the seconds, memory and
  /// constraint that it has, and why it was not taken.
  std::vector<ConsideredGrouping> groupings(const PlannedReplica& planned, PipelineOrder order);

 private:
  ReplicaModel model_of(const PlannedReplica& empty) const;
  /// With the memory of what stays between steps.
  PlannedReplica without_rows(PlannedReplica replica);
  std::vector<std::optional<ReplicaChoice>> search(const ReplicaModel& model, const PlannedReplica& empty, const BudgetSearch& tried);
  std::optional<ReplicaChoice> interleaved(const PlannedReplica& empty, Sharing sharing, const std::vector<TaskChoice>& choices);
  std::optional<ReplicaChoice> split(const ReplicaModel& model, const PlannedReplica& empty, const std::vector<TaskChoice>& choices);
  /// With the token budget, hybrid tasks and runs of layers of a replica with like rows; nothing where that one does not fit, or where
  /// they do not fit here.
  std::optional<ReplicaChoice> as(const ReplicaChoice& like, const PlannedReplica& empty, Sharing sharing, PipelineOrder order);
  static std::vector<TaskChoice> split_choices(const ReplicaModel& model, const std::vector<StepRow>& rows,
                                               const std::vector<TaskChoice>& choices);
  /// Partitions of the jobs with rows that are tried; one that is not read where the policy leaves no choice. All jobs, each
  /// job by itself, what choose_hybrid_tasks finds; where all-reduces can be hidden (has_clocks) also two halves in one clock, and jobs in pairs.
  const std::vector<TaskChoice>& task_choices(const ReplicaModel& replica, const std::vector<StepRow>& rows,
                                               Sharing sharing);

  const ModelConfig& model_;
  const ClusterSpec& cluster_;
  const NodeGroup& group_;
  const std::vector<JobShape>& jobs_;
  const PlanOptions& options_;
  bool recompute_;
  std::map<int64_t, StagePrices> prices_;  ///< by tensor parallelism
  /// By tensor and sequence parallelism, stages, shards and jobs with rows.
  std::map<std::tuple<int64_t, bool, size_t, int64_t, std::vector<int32_t>>, std::vector<TaskChoice>> task_choices_;
};

}  // namespace cotune
