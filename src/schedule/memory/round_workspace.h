/// Inside the memory model: what calls take while they run, beside what is kept.
#pragma once

#include <cstdint>
#include <span>

#include "model/config/model_config.h"
#include "schedule/memory/memory_facts.h"

namespace cotune {

/// Of a microbatch of so many tokens; predict_rounds has the formula.
int64_t workspace_bytes(const ModelConfig& config, std::span<const JobFootprint> jobs, int64_t tokens, const PackingPolicy& policy,
                        const MemoryFacts& facts);

/// The packed forms that one grouped call makes of these jobs' factors, at most: those of one operator.
int64_t largest_forms(const ModelConfig& config, std::span<const JobFootprint> jobs, const MemoryFacts& facts);

}  // namespace cotune
