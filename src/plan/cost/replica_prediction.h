/// What one replica takes for its rows of a step (price_rows.h) under a pipeline order: ordered, proven and simulated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/cost/price_rows.h"
#include "plan/plan.h"
#include "schedule/pipeline/simulate.h"

namespace cotune {

/// One work with its schedule, run.
struct ReplicaRun {
  PipelineWork work;
  PipelineSchedule schedule;
  PipelineSimulation simulation;
};

struct ReplicaPrediction {
  std::string constraint;           ///< what does not fit, in words; "": it does
  Overflow overflow;                ///< of the stage that the constraint names
  double seconds = 0;               ///< per step
  /// Not one microbatch fits, so nothing is ordered: `seconds` is what the busiest rank computes, the least that it can take.
  bool is_bound = false;
  double bubble = 0;                ///< idle share of its ranks over these seconds
  std::vector<double> busy_s;       ///< per rank of the pipeline and step
  std::vector<StageMemory> memory;  ///< per rank of the pipeline, at its peak; where nothing is ordered, for one microbatch
  std::string order;                ///< the name of what choose_order took, where it was asked
  std::vector<ReplicaRun> runs;     ///< of `rounds` steps each

  bool fits() const { return constraint.empty(); }
  int64_t fullest_bytes() const;
};

/// Whether every rank's memory holds as many of its largest microbatch as 1F1B has under way there, one for itself and each rank behind it.
bool holds_a_full_pipeline(const ReplicaModel& replica, const PricedRows& priced);

/// What each rank computes per step under any order, but for optimizer steps: no order is shorter than the largest.
std::vector<double> computing_seconds(const ReplicaModel& replica, const PricedRows& priced);

/// What is spent on the orders that choose_order makes.
enum class OrderEffort {
  full,
  quick,  ///< one that it tries, continuous 1F1B, stands for them; needs one run of layers a rank
};

/// Orders the works over `rounds` successive steps, proves the schedules (verify) and simulates them; seconds
/// are those of one step. activations are the peak of kept microbatches and message buffers. Where choose_order
/// orders (`automatic`, `split`, and `interleaved` with one run of layers a rank) it keeps within the device's memory where
/// a microbatch fits at all; the others, and all at a quick effort, take what they take and may not fit. gpipe and 1f1b are
/// those of a run (plan_ranks): a rank is through with a hybrid task's step before it begins the next.
ReplicaPrediction predict_replica(const ReplicaModel& replica, const PricedRows& priced, PipelineOrder order,
                                  int64_t rounds, OrderEffort effort = OrderEffort::full);

}  // namespace cotune
