#include "schedule/pipeline/gpipe.h"

#include "schedule/pipeline/alternating_order.h"

namespace cotune {

ComputeOrder gpipe(const PipelineWork& work) {
  const std::vector<int32_t> starts = batch_starts(work);
  const auto unit_count = static_cast<int32_t>(starts.size());
  ComputeOrder order;
  for (int32_t r = 0; r < work.rank_count; ++r) {
    AlternatingRank rank{.ahead = static_cast<int64_t>(unit_count) * work.stage_count()};
    for (int32_t first = 0, end = 0; first < unit_count; first = end) {
      while (end < unit_count && starts[static_cast<size_t>(end)] == first) ++end;
      for (int32_t s = 0; s < work.stage_count(); ++s) {
        const int32_t from_above = work.stage_count() - 1 - s;
        for (int32_t u = first; u < end; ++u) {
          if (work.stage_rank[static_cast<size_t>(s)] == r) rank.forwards.push_back({u, s});
          if (work.stage_rank[static_cast<size_t>(from_above)] == r)
            rank.backwards.push_back({u, from_above});
        }
      }
    }
    order.push_back(alternate(work, rank, BatchBoundary::flush));
  }
  return order;
}

}  // namespace cotune
