/// What one replica takes for its rows of a step (price_rows.h) under a pipeline order: ordered, proven and simulated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/never.h"
#include "plan/cost/price_rows.h"
#include "plan/shapes/pipeline_order.h"
#include "schedule/pipeline/default_order.h"
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

/// Whether choose_order makes it: `automatic`, `split`, and `interleaved` with one run of layers a rank.
bool takes_default_order(const ReplicaModel& replica, PipelineOrder order);

/// Whether every rank's memory holds as many of its largest microbatch as 1F1B has under way there, one for itself and each rank behind it.
bool holds_a_full_pipeline(const ReplicaModel& replica, const PricedRows& priced);

/// What each rank computes per step under any order, but for optimizer steps.
std::vector<double> computing_seconds(const ReplicaModel& replica, const PricedRows& priced);

/// Seconds of a step than which no order over `rounds` successive ones is shorter (least_makespan_s).
double least_seconds(const PricedRows& priced, int64_t rounds);

/// Orders the works over `rounds` successive steps, proves the schedules (verify) and simulates them; seconds
/// are those of one step. activations are the peak of kept microbatches and message buffers. Where choose_order
/// orders it keeps within the device's memory where a microbatch fits at all; the others take what they take and may not fit. gpipe and
/// 1f1b are those of a run (plan_ranks): a rank is through with a hybrid task's step before it begins the next.
ReplicaPrediction predict_replica(const ReplicaModel& replica, const PricedRows& priced, PipelineOrder order, int64_t rounds);

/// Where a prediction ends early.
struct PredictionLimits {
  double below_s = never;                        ///< works whose order takes so long, or longer, are not simulated
  int64_t most_exchanges = most_task_exchanges;  ///< as of choose_order
};

/// The same; nothing where the works in their order take below_s or longer although no message waits for another (ComputeGraph), so that a
/// simulation cannot find less.
std::optional<ReplicaPrediction> predict_within(const ReplicaModel& replica, const PricedRows& priced, PipelineOrder order, int64_t rounds,
                                                const PredictionLimits& limits);

/// The order that an estimate goes by. Both need one run of layers a rank.
enum class EstimatedOrder {
  continuous_one_f_one_b,  ///< takes what memory it takes
  chosen,                  ///< choose_order, which keeps within the device's memory
};

/// What predict_replica says of order `automatic`, without schedule and simulation: no message waits for another, optimizer steps delay only
/// the first forward of the next step, and every rank has two messages each way under way. No runs.
ReplicaPrediction estimate_replica(const ReplicaModel& replica, const PricedRows& priced, EstimatedOrder order, int64_t rounds);

}  // namespace cotune
