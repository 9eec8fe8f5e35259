/// A stage's clock: a microbatch of each of several hybrid tasks, interleaved so that one computes while another's all-reduce
/// runs (MuxTune §3.4.2 and §3.4.3; MX-17 to MX-20).
#pragma once

#include <span>
#include <vector>

#include "plan/cost/priced_stage.h"
#include "plan/cost/stage_prices.h"
#include "schedule/stage/overlap.h"

namespace cotune {

/// A hybrid task's microbatch.
struct ClockTask {
  const std::vector<AdapterShape>* adapters = nullptr;  ///< of its jobs, over the whole model
  const MicrobatchCounts* counts = nullptr;
  bool has_backward = true;  ///< false: the stage lies below its lowest adapter
};

/// The same, of a stage that is priced often.
struct PricedClockTask {
  const PricedStage* stage = nullptr;  ///< with the adapters of the task's jobs
  const MicrobatchCounts* counts = nullptr;
  bool has_backward = true;
};

/// How the machine's streams share a device: communication costs its rate of computing communication_share.
StreamRates stream_rates(const StageMachine& machine);

/// Seconds of the tasks' forwards and of their backwards, each the makespan of choose_launch_order over their subgraphs; with
/// one task its own all-reduces are hidden behind its adapter gradients at most. Never above the sum of stage_seconds; equal
/// to it without tensor parallelism, and where tokens are divided. Under machine.recompute the forwards that run again are a clock of their own
/// before the backwards. More than four tasks run four at a time. Stages of many layers adapted alike are extrapolated from three
/// and five (tests hold this to 1 % forward, 3.5 % backward).
StageSeconds overlapped_seconds(const ModelConfig& model, const StageShape& stage, std::span<const ClockTask> tasks,
                                const StageMachine& machine);

/// The same for stages of one shape on one machine; with tensor parallelism either all or none of them price every layer.
StageSeconds overlapped_seconds(std::span<const PricedClockTask> tasks);

/// A microbatch of a clock that runs on every stage.
struct ClockMicrobatch {
  size_t jobs_number = 0;                    ///< StagePrices::jobs_number of its jobs
  const MicrobatchCounts* counts = nullptr;
  int32_t lowest_stage = 0;                  ///< no backward below it
};

/// The same on stage number `index`, priced by `prices`: layer by layer where the jobs of some microbatch adapt layers unlike.
StageSeconds overlapped_seconds(StagePrices& prices, const StageShape& stage, size_t index, std::span<const ClockMicrobatch> microbatches);

}  // namespace cotune
