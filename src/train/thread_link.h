/// What messages between ranks that are threads of one process take.
#pragma once

#include "plan/cost/measured_times.h"
#include "plan/shapes/cluster.h"
#include "schedule/pipeline/pipeline_cluster.h"

namespace cotune {

/// Between threads of one process, through the loopback device: 1.2 MB took 0.3 ms between two busy cores, 4 bytes 0.04.
inline constexpr Link thread_link{.latency_s = 4e-5, .bytes_per_s = 4e9};
/// The same as a profile has measured it, with collectives; thread_link for what it has not measured, or without one (nullptr).
LinkSpec link_between_threads(const MeasuredTimes* measured);

/// A link of a pipeline, as the planner's clusters have it: no collective over it was measured.
LinkSpec spec_of(const Link& link);

}  // namespace cotune
