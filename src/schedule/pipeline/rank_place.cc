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

RankPeers peers_of_rank(std::span<const PipelineLayout> layouts, int32_t rank) {
  const auto [replica, own] = place_of_rank(layouts, rank);
  const int32_t first = rank - own;
  const PipelineLayout& layout = layouts[replica];
  RankPeers peers;
  for (int32_t worker = 0; worker < layout.worker_count(); ++worker) {
    if (layout.shard_of(worker) == layout.shard_of(own)) peers.pipeline.push_back(first + worker);
    if (layout.place_of(worker) == layout.place_of(own)) peers.group.push_back(first + worker);
  }
  return peers;
}

int32_t rank_count_of(std::span<const PipelineLayout> layouts) {
  int32_t count = 0;
  for (const PipelineLayout& layout : layouts) count += layout.worker_count();
  return count;
}

}  // namespace cotune
