#include "schedule/pipeline/weight_copies.h"

#include "schedule/pipeline/rank_place.h"

namespace cotune {

std::vector<size_t> replicas_with_weights_of(std::span<const PipelineLayout> layouts, size_t replica) {
  if (!layouts[replica].shards_weights) return {replica};
  std::vector<size_t> like;
  for (size_t other = 0; other < layouts.size(); ++other) {
    if (layouts[other] == layouts[replica]) like.push_back(other);
  }
  return like;
}

std::vector<int32_t> ranks_with_weights_of(std::span<const PipelineLayout> layouts, int32_t rank) {
  const RankPlace place = place_of_rank(layouts, rank);
  std::vector<int32_t> ranks;
  for (const size_t replica : replicas_with_weights_of(layouts, place.replica)) ranks.push_back(first_rank_of(layouts, replica) + place.worker);
  return ranks;
}

std::optional<std::pair<int32_t, int32_t>> ranks_of_unlike_forms(std::span<const PipelineLayout> layouts, std::span<const std::string> forms) {
  for (int32_t rank = 0; rank < std::ssize(forms); ++rank) {
    const int32_t first = ranks_with_weights_of(layouts, rank).front();
    if (forms[static_cast<size_t>(first)] != forms[static_cast<size_t>(rank)]) return std::pair(first, rank);
  }
  return std::nullopt;
}

bool some_share_weights(std::span<const PipelineLayout> layouts) {
  for (size_t replica = 0; replica < layouts.size(); ++replica) {
    if (replicas_with_weights_of(layouts, replica).size() > 1) return true;
  }
  return false;
}

}  // namespace cotune
