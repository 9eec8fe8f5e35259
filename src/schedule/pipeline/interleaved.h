/// Interleaved 1F1B (Narayanan et al. 2021, Megatron-LM): several stages per rank, so that filling and
/// draining take a smaller part of the time.
#pragma once

#include "schedule/pipeline/one_f_one_b.h"

namespace cotune {

/// Stage k on rank k mod p, v stages a rank (interleaved_stages). Microbatches go in groups of p through all
/// stages of a rank; rank r takes 2(p-1-r) + (v-1)p forwards ahead, and more where a group that is not full
/// needs it. Chains count as one. Under flush, with equal stages, no transfer time and m a multiple of p, the
/// bubble ratio is (p-1)/(v·m + p-1).
ComputeOrder interleaved_one_f_one_b(const PipelineWork& work, BatchBoundary boundary);

}  // namespace cotune
