/// The token budget and hybrid tasks of one replica: what is tried, and the fastest that fits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/cost/replica_prediction.h"
#include "plan/cost/stage_prices.h"
#include "plan/fusion/fusion.h"
#include "plan/plan.h"
#include "plan/plan_options.h"
#include "schedule/pipeline/grouping.h"

namespace cotune {

/// A replica with its rows, predicted under one pipeline order.
struct ReplicaChoice {
  PlannedReplica replica;
  std::string constraint;  ///< what does not fit, in words; "": it does
  Overflow overflow;
  bool is_bound = false;   ///< ReplicaPrediction
  bool is_like = false;    ///< took what a replica with like rows has (ReplicaPlanner::plan)

  bool fits() const { return constraint.empty(); }
};

/// Hybrid tasks, and which of them run in one clock.
struct TaskChoice {
  HybridTasks tasks;
  Buckets buckets;
  int64_t least_microbatches = 1;
  bool operator==(const TaskChoice&) const = default;
};

/// What is tried of a replica: every choice under every order.
struct BudgetSearch {
  Sharing sharing = Sharing::hybrid;
  std::vector<TaskChoice> choices;
  std::vector<PipelineOrder> orders;
  int64_t wanted = 0;   ///< microbatches; the budget is halved as long as there are fewer
  bool is_few = false;  ///< what has as many as wanted, or one, is not tried
  int64_t budget = 0;   ///< above 0: this alone; else from the replica's own down, as search_budgets says
  std::optional<EstimatedOrder> estimated;  ///< by estimate_replica; nothing: ordered and simulated
};

/// Tokens of a microbatch: it must take an atom, or a chunk of layout chunked. Longer rows are chains.
int64_t least_budget(const PlanOptions& options);

/// `empty`: with its stages, devices, rows, and the most tokens that fit by closed form as its budget; `replica`: of it. For each order the
/// fastest of all budgets and hybrid tasks that fit, or, where none does, the last tried and what overflows; nothing for an order under which
/// nothing was tried. The budget is halved, down to least_budget, as long as something that may be the fastest does not fit or there are fewer
/// microbatches than wanted; and further, until two halvings in a row gain nothing, with layout padded or where a pipeline is idle for more than 3 %
/// of its step whose memory does not hold all that 1F1B has under way. Launch orders of hybrid tasks are exchanged (choose_order) for the three best
/// within 3 % of the fastest alone. Throws PlanningStopped.
std::vector<std::optional<ReplicaChoice>> search_budgets(const ReplicaModel& replica, const PlannedReplica& empty, const BudgetSearch& tried,
                                                         const PlanOptions& options, StagePrices& prices);

}  // namespace cotune
