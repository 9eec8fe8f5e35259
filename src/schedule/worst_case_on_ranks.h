#pragma once

#include <span>

#include "schedule/memory.h"

namespace cotune {

/// The worst of all leading jobs (worst_case), where ranks may divide the model. A token counts for the share of the model's layers that a
/// rank holds it in, in the unit of alive_tokens.h: of ranks in one process their sum, which is at most what predict_memory counts; of
/// processes that of the one with most layers. In memory.cc, beside what predict_memory makes of it.
WorstCase worst_case_on_ranks(const ModelConfig& config, std::span<const JobFootprint> jobs, const PackingPolicy& policy,
                              const MemoryFacts& facts);

}  // namespace cotune
