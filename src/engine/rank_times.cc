#include "engine/rank_times.h"

#include <algorithm>
#include <utility>

#include "schedule/pipeline/rank_place.h"

namespace cotune {

RankTimes times_of_ranks(std::span<const PipelineLayout> layouts, std::vector<RankTime> ranks) {
  RankTimes times;
  times.first_rank.clear();
  for (size_t replica = 0; replica < layouts.size(); ++replica) {
    times.first_rank.push_back(static_cast<size_t>(first_rank_of(layouts, replica)));
  }
  for (const RankTime& each : ranks) {
    times.seconds = std::max(times.seconds, each.seconds);
    times.round_bytes = std::max(times.round_bytes, each.round_bytes);
  }
  for (const RankTime& each : ranks) times.idle_s.push_back(times.seconds - each.seconds);
  times.ranks = std::move(ranks);
  return times;
}

}  // namespace cotune
