/// Ranks of several replicas of the model: those of a replica follow one another.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedule/pipeline/rank_plan.h"

namespace cotune {

struct RankPlace {
  size_t replica = 0;
  int32_t worker = 0;  ///< among PipelineLayout::worker_count() of the replica
  bool operator==(const RankPlace&) const = default;
};

/// layouts: of the replicas. Throws InternalError where there is no such rank.
RankPlace place_of_rank(std::span<const PipelineLayout> layouts, int32_t rank);
int32_t first_rank_of(std::span<const PipelineLayout> layouts, size_t replica);
/// Of its head: the first of those that divide its last stage.
int32_t top_rank_of(std::span<const PipelineLayout> layouts, size_t replica);
int32_t rank_count_of(std::span<const PipelineLayout> layouts);

/// Whom a rank exchanges messages with inside its replica, itself among them, by their numbers in the run, ascending.
struct RankPeers {
  std::vector<int32_t> pipeline;  ///< those of equal place in their groups, from stage to stage
  std::vector<int32_t> group;     ///< those that divide its layers
};
RankPeers peers_of_rank(std::span<const PipelineLayout> layouts, int32_t rank);

}  // namespace cotune
