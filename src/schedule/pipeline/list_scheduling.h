/// Greedy orders: whenever a rank is idle and something may start, it starts. The core of LoRAPP and of
/// MuxTune's template, which differ in their policies.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/pipeline/compute_graph.h"

namespace cotune {

struct ListPolicy {
  bool backward_first = true;  ///< a ready backward goes before a ready forward (mLoRA §3.2.1); false: after
  /// Units in the order of their launch; a permutation of units_of, ascending within a job. Empty: as they
  /// stand.
  std::vector<int32_t> launch_order;
  /// true: a rank takes forwards in launch order, and waits for the next one. false: the one that is ready
  /// longest, among equals the first in launch order; a job whose step is not through lets others pass.
  bool strict = false;
  /// At most so many microbatches between forward and backward, per rank; at most so many bytes of them.
  /// Empty: no limit. A chain takes its places together, and goes alone where it exceeds the count. Needs one
  /// stage per rank.
  std::vector<int32_t> in_flight_limit;
  std::vector<int64_t> kept_bytes_limit;
};

/// Among ready backwards the one that is ready longest goes first. Ties go to the lower microbatch, then the
/// higher stage. Pure. Throws UserError when a single unit exceeds a rank's kept_bytes_limit, naming unit,
/// rank and bytes.
ComputeOrder list_schedule(const PipelineWork& work, const PipelineCluster& cluster,
                           const ListPolicy& policy);
/// The same with the graph of the work, for more calls.
ComputeOrder list_schedule(const PipelineWork& work, const ComputeGraph& graph, const ListPolicy& policy);

}  // namespace cotune
