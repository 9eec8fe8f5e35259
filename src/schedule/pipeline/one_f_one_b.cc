#include "schedule/pipeline/one_f_one_b.h"

#include "base/error.h"
#include "schedule/pipeline/alternating_order.h"

namespace cotune {

ComputeOrder one_f_one_b(const PipelineWork& work, BatchBoundary boundary) {
  COTUNE_CHECK(work.stage_rank == one_stage_per_rank(work.rank_count), "1F1B needs one stage per rank");
  const auto unit_count = static_cast<int32_t>(units_of(work).size());
  ComputeOrder order;
  for (int32_t s = 0; s < work.rank_count; ++s) {
    AlternatingRank rank{.ahead = work.rank_count - 1 - s};
    for (int32_t u = 0; u < unit_count; ++u) rank.forwards.push_back({u, s});
    rank.backwards = rank.forwards;
    order.push_back(alternate(work, rank, boundary));
  }
  return order;
}

}  // namespace cotune
