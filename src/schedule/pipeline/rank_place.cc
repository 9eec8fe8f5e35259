#include "schedule/pipeline/rank_place.h"

#include "base/error.h"

namespace cotune {

RankPlace place_of_rank(std::span<const PipelineLayout> layouts, int32_t rank) {
  int32_t worker = rank;
  for (size_t replica = 0; replica < layouts.size(); ++replica) {
    if (worker < layouts[replica].worker_count()) return {replica, worker};
    worker -= layouts[replica].worker_count();
  }
  COTUNE_CHECK(false, "there is no rank {} among {}", rank, rank_count_of(layouts));
}

int32_t first_rank_of(std::span<const PipelineLayout> layouts, size_t replica) { return rank_count_of(layouts.first(replica)); }

int32_t top_rank_of(std::span<const PipelineLayout> layouts, size_t replica) {
  const PipelineLayout& own = layouts[replica];
  return first_rank_of(layouts, replica) + own.stage_rank.back() * own.tensor_parallel();
}

int32_t rank_count_of(std::span<const PipelineLayout> layouts) {
  int32_t count = 0;
  for (const PipelineLayout& layout : layouts) count += layout.worker_count();
  return count;
}

}  // namespace cotune
