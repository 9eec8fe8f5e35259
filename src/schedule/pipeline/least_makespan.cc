#include "schedule/pipeline/least_makespan.h"

#include <algorithm>
#include <vector>

#include "base/never.h"

namespace cotune {

double least_makespan_s(const PipelineWork& work, int64_t times) {
  if (work.microbatches.empty()) return 0;
  const auto ranks = static_cast<size_t>(work.rank_count);
  std::vector<double> sum(ranks, 0), before(ranks, never), after(ranks, never);
  for (const PipelineMicrobatch& microbatch : work.microbatches) {
    const auto lowest = static_cast<size_t>(lowest_stage(work, microbatch));
    double to_here = 0, from_here = 0;
    for (size_t s = 0; s < microbatch.cost.size(); ++s) {
      const auto rank = static_cast<size_t>(work.stage_rank[s]);
      const double forward = microbatch.cost[s].forward_s, backward = s >= lowest ? microbatch.cost[s].backward_s : 0;
      before[rank] = std::min(before[rank], to_here);
      after[rank] = std::min(after[rank], from_here);
      sum[rank] += forward + backward;
      to_here += forward;
      from_here += backward;
    }
  }
  const bool has_own_stage = work.stage_rank == one_stage_per_rank(work.rank_count);
  double least = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    least = std::max(least, static_cast<double>(times) * sum[rank] + (has_own_stage ? before[rank] + after[rank] : 0));
  }
  return least;
}

}  // namespace cotune
