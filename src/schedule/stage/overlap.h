/// Simulation of a launch order on a compute and a communication stream.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedule/stage/subgraphs.h"

namespace cotune {

/// A subgraph of one of several DAGs.
struct Launch {
  int32_t task = 0;
  int32_t subgraph = 0;
  bool operator==(const Launch&) const = default;
};

/// How the two streams share a device. With NVLink SHARP 8 thread blocks carry the full bandwidth (MuxTune
/// §3.4.3): a small share. Elsewhere a larger share slows computing, a smaller one communication.
struct StreamRates {
  bool overlap = true;  ///< false: nothing computes while something communicates
  double communication_share =
      0;  ///< of the compute rate, from 0 to below 1, lost while something communicates
  double communication_rate = 1;  ///< communication takes its seconds divided by this; above 0
  bool operator==(const StreamRates&) const = default;
};

struct LaunchSpan {
  Launch launch;
  double compute_start_s = 0;
  double compute_end_s = 0;
  double communication_start_s = 0;  ///< equal to the end where there is none
  double communication_end_s = 0;
};

struct StageOverlap {
  double makespan_s = 0;
  double compute_busy_s = 0;
  double communication_busy_s = 0;
  std::vector<LaunchSpan> spans;  ///< in launch order
};

/// Each stream runs in order: compute in launch order, communication in the order of the computes. A subgraph
/// starts when the compute stream is free and all its predecessors have computed and communicated. Throws
/// InternalError when the order is not one of all subgraphs, each once and after its predecessors.
StageOverlap simulate_launches(std::span<const SubgraphDag> dags, std::span<const Launch> order,
                               const StreamRates& rates = {});

}  // namespace cotune
