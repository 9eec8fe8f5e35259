/// Frozen weights of like copies of a model spread over them, each layer gathered where it is used: what FSDP and ZeRO-3
/// do, here for a backbone that needs no gradients (MuxTune's and mLoRA's strongest baseline).
#pragma once

#include <cstdint>

#include "plan/cost/stage_memory.h"

namespace cotune {

struct WeightSharding {
  int64_t shards = 1;   ///< copies that share one set of weights; 1: every copy has its own
  double overlap = 0.5; ///< share of a pass's gathering that may hide behind its computation: 0 none, 1 all that is computed
                        ///< meanwhile. Above 0 the next layer is gathered while one computes, so two stand in memory
  bool operator==(const WeightSharding&) const = default;
};

/// All-gather of `bytes` (the whole) over n ranks: as it was measured, where link.measured has it of n ranks, else a ring's,
/// (n − 1)/n·bytes / bandwidth + (n − 1)·latency.
double all_gather_seconds(double bytes, int64_t ranks, const LinkSpec& link);

/// What a pass takes that computes for `compute` seconds and gathers for `gather`:
///   compute + gather − min(overlap·gather, compute).
double seconds_with_gathering(double compute, double gather, double overlap);

/// The same memory with weights / shards, rounded up, and what is gathered at a time: a layer, the embedding or the head,
/// whichever is the largest, once or (overlap > 0) twice. Where machine's device says how it holds weights (DeviceSpec::weights): as the
/// engine spreads them (held_weight_bytes), nothing where all ranks share one set.
StageMemory with_sharded_weights(StageMemory memory, const ModelConfig& model, const StageShape& stage,
                                 const WeightSharding& sharding, const StageMachine& machine);

/// An all-gather of every unit of the stage (layers, embedding, head) over `link`, one after the other: of a pass. 0 with one shard.
double gathering_seconds(const ModelConfig& model, const StageShape& stage, const WeightSharding& sharding, int64_t element_size,
                         const LinkSpec& link);

/// Forward and backward, each with `gathering` (gathering_seconds).
StageSeconds with_gathered_weights(const StageSeconds& seconds, double gathering, const WeightSharding& sharding);
/// The same, with the gathering_seconds of the stage.
StageSeconds with_gathered_weights(const StageSeconds& seconds, const ModelConfig& model, const StageShape& stage,
                                   const WeightSharding& sharding, int64_t element_size, const LinkSpec& link);

}  // namespace cotune
