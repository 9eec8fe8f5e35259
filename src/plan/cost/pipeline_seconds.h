/// Latency of a pipeline in closed form, where no simulation is needed (MX-11, LB-29 to LB-31).
#pragma once

#include <cstdint>
#include <span>

namespace cotune {

/// MuxTune's Eq. 4 (MX-11) for `microbatches` like ones: 2·Σ_{s<S} λ_s + 2·C·max_s λ_s, λ_s the mean of forward and
/// backward of stage s. Exact for 1F1B on equal stages.
double pipeline_seconds(std::span<const double> stage_seconds, int64_t microbatches);

/// LobRA's Eq. 11 (LB-30): m·t + (p − 1)·t, t seconds of one chunk on one stage, forward and backward.
double even_chunks_seconds(double chunk_seconds, int64_t chunks, int64_t stages);

/// LobRA's Eq. 12 (LB-31) for chunks of any length, run longest first: Σ t + (p − 1)·max t. Eq. 10 (LB-29) for p = 1.
double uneven_chunks_seconds(std::span<const double> chunk_seconds, int64_t stages);

}  // namespace cotune
