/// What no order of a pipeline's computations is shorter than.
#pragma once

#include <cstdint>

#include "schedule/pipeline/pipeline_work.h"

namespace cotune {

/// Seconds of the work, `times` times over: the busiest rank computes all that is its own, and where each rank has one stage, after the
/// first activation has come through those below and before the last error has gone through them. Messages and optimizer steps take no time.
double least_makespan_s(const PipelineWork& work, int64_t times = 1);

}  // namespace cotune
