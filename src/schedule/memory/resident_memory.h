/// Memory of a job that is resident: its adapters with gradients and moments, and what its files take.
#pragma once

#include <cstdint>
#include <span>

#include "model/config/model_config.h"
#include "schedule/memory/memory_facts.h"

namespace cotune {

/// The packed form of a low-rank factor [rank, width] that a grouped call makes and frees, in panels of 32 columns: to
/// shrink by (always whole), to expand by.
int64_t shrink_form_bytes(int64_t rank, int64_t width, const MemoryFacts& facts);
int64_t expand_form_bytes(int64_t rank, int64_t width, const MemoryFacts& facts);

/// What a resident job holds between steps: adapters (without kernels of our own also a copy of their factors in the compute
/// dtype), gradients, optimizer.
MemoryEstimate resident_bytes(const ModelConfig& config, const JobFootprint& job, const MemoryFacts& facts);

/// What a checkpoint's files take while they are written or read, at most, beside the job's tensors: a copy of the largest site's
/// parameters, more than the one tensor that is written at a time, and the places of a sparse delta's entries.
int64_t file_bytes(const ModelConfig& config, const JobFootprint& job, const MemoryFacts& facts);

}  // namespace cotune
