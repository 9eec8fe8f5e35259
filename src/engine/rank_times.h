/// Where the time of a run on several ranks went, and what it moved and held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/sent_messages.h"
#include "schedule/pipeline/rank_plan.h"
#include "schedule/pipeline/simulate.h"

namespace cotune {

/// What one rank did in a run.
struct RankTime {
  double seconds = 0;   ///< from its begin to its end
  double waited_s = 0;  ///< for messages and in collectives
  SentMessages sent;    ///< to other stages
  int64_t collectives = 0;      ///< among the ranks that divide its layers
  int64_t group_bytes = 0;      ///< that it sent in them
  double exposed_s = 0;         ///< of waited_s: for these all-reduces, with nothing to compute beside them
  double gathering_s = 0;       ///< of waited_s: for slices of frozen weights that other ranks have
  double exchanging_s = 0;      ///< of waited_s: for gradients of other replicas, with nothing to compute beside their exchange
  int64_t exchanged_bytes = 0;  ///< of gradients, sent to other ranks
  /// Of a rank with memory of its own: that tensors have held, so far. Of a thread: that its part of the run took on the host, at most; 0
  /// without the counting allocator.
  int64_t peak_bytes = 0;
  // Of ranks with memory of their own; of others 0.
  int64_t round_bytes = 0;         ///< that its tensors took at most, beyond those alive before the run
  int64_t weight_bytes = 0;        ///< that frozen weights have taken at most, those gathered included
  int64_t whole_weight_bytes = 0;  ///< that they would take were none of them spread over other ranks
  std::vector<SimulatedSpan> spans;           ///< when it computed which action, from its begin
  std::vector<SimulatedSpan> sent_spans;      ///< when what it sent to other stages was under way (RankMessages::sent_spans), likewise
  std::vector<SimulatedSpan> exchange_spans;  ///< when it exchanged gradients with other replicas (SimulatedRank::exchanges), likewise
  std::map<std::string, double> operator_seconds;  ///< by operator; of a device it is the host's time, which says nothing
};

/// What the ranks did in a run.
struct RankTimes {
  double seconds = 0;           ///< from the first rank's begin to the last one's end
  std::vector<RankTime> ranks;  ///< of all replicas
  std::vector<double> idle_s;   ///< of each rank: after its own end, for the others
  std::vector<size_t> first_rank = {0};  ///< of each replica
  /// That the tensors of a process took at most, beyond those alive before the run: of the process that took most.
  int64_t round_bytes = 0;
};

/// layouts: of the replicas; ranks: of all of them, by rank.
RankTimes times_of_ranks(std::span<const PipelineLayout> layouts, std::vector<RankTime> ranks);

}  // namespace cotune
