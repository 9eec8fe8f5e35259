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
  for (const RankTime& each : ranks) times.seconds = std::max(times.seconds, each.seconds);
  for (RankTime& each : ranks) {
    times.waited.push_back(each.waited);
    times.idle.push_back(times.seconds - each.seconds);
    times.sent.push_back(each.sent);
    times.collectives.push_back(each.collectives);
    times.group_bytes.push_back(each.group_bytes);
    times.exposed.push_back(each.exposed);
    times.exchanged_bytes.push_back(each.exchanged_bytes);
    times.peak_bytes.push_back(each.peak_bytes);
    times.round_bytes.push_back(each.round_bytes);
    times.gathering.push_back(each.gathering);
    times.exchanging.push_back(each.exchanging);
    times.weight_bytes.push_back(each.weight_bytes);
    times.whole_weight_bytes.push_back(each.whole_weight_bytes);
    times.spans.push_back(std::move(each.spans));
    times.sent_spans.push_back(std::move(each.sent_spans));
    times.exchange_spans.push_back(std::move(each.exchange_spans));
    times.operator_seconds.push_back(std::move(each.operator_seconds));
  }
  return times;
}

}  // namespace cotune
