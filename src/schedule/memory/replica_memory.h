/// What peak_memory.h predicts where there are several replicas of the model (MemoryFacts::replicas).
#pragma once

#include <span>

#include "schedule/memory/peak_memory.h"
#include "schedule/memory/worst_case.h"

namespace cotune {

/// resident_bytes. Of replicas that are in one process: the whole adapter and every replica's copy or shards. Of processes: the dearest
/// one's, with the whole adapter and what it steps of it.
MemoryEstimate resident_bytes_of_replicas(const ModelConfig& config, const JobFootprint& job, const MemoryFacts& facts);

/// predict_rounds, with the buffers in which gradients are exchanged.
MemoryEstimate predict_rounds_of_replicas(const ModelConfig& config, std::span<const JobFootprint> jobs, const PackingPolicy& policy,
                                          const MemoryFacts& facts, RoundKind kind);

/// worst_case_on_ranks. everything: tokens of a round, which replicas in one process divide.
WorstCase worst_case_of_replicas(const ModelConfig& config, std::span<const JobFootprint> jobs, const PackingPolicy& policy,
                                 const MemoryFacts& facts, int64_t everything);

}  // namespace cotune
