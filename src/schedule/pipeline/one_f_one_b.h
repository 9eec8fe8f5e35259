/// 1F1B with flushes (PipeDream-Flush, Narayanan et al. 2021), and without them between independent jobs.
#pragma once

#include "schedule/pipeline/compute_graph.h"

namespace cotune {

/// What separates the batches of hybrid tasks in a rank's order.
enum class BatchBoundary {
  flush,  ///< a rank is through with a batch before it begins the next: one task at a time, as 1F1B's users
          ///< run it
  continuous,  ///< the next batch follows at once; only a job's own next step waits for its optimizer step
};

/// Each stage s of p takes p-1-s forwards ahead, then forwards and backwards in turn, then the backwards that
/// are left. Chains count as one. Needs one stage per rank. Under flush, with equal stages and no transfer
/// time, the bubble ratio is GPipe's, (p-1)/(m+p-1), with at most p-s microbatches kept on stage s.
ComputeOrder one_f_one_b(const PipelineWork& work, BatchBoundary boundary);

}  // namespace cotune
