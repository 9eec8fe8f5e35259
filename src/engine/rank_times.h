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
  double seconds = 0;  ///< from its begin to its end
  double waited = 0;   ///< for messages and in collectives
  SentMessages sent;  ///< to other stages
  int64_t collectives = 0, group_bytes = 0;
  double exposed = 0;  ///< of waited: for all-reduces among the ranks that divide its layers
  double gathering = 0;  ///< of waited: for slices of frozen weights
  double exchanging = 0;  ///< of waited: for gradients of other replicas
  int64_t exchanged_bytes = 0;  ///< of gradients, sent to other ranks
  int64_t peak_bytes = 0;       ///< that its tensors have held, so far
  int64_t round_bytes = 0;      ///< that its tensors took at most, beyond those alive before the run
  int64_t weight_bytes = 0;     ///< that frozen weights have taken at most, those gathered included
  int64_t whole_weight_bytes = 0;  ///< that they would take were none of them spread over other ranks
  std::vector<SimulatedSpan> spans;  ///< when it computed which action, from its begin
  std::vector<SimulatedSpan> sent_spans;  ///< when what it sent to other stages was under way (RankMessages::sent_spans), likewise
  std::vector<SimulatedSpan> exchange_spans;  ///< when it exchanged gradients with other replicas (SimulatedRank::exchanges), likewise
  std::map<std::string, double> operator_seconds;
};

/// What the ranks did in a run, each element of one rank unless it says otherwise.
struct RankTimes {
  double seconds = 0;         ///< from the first rank's begin to the last one's end
  std::vector<double> waited; ///< for messages
  std::vector<double> idle;   ///< after its own end, for the others
  std::vector<size_t> first_rank = {0};  ///< of each replica
  std::vector<SentMessages> sent;    ///< to other stages
  std::vector<int64_t> collectives;  ///< among the ranks that divide its layers
  std::vector<int64_t> group_bytes;  ///< that it sent in them
  std::vector<double> exposed;       ///< of waited: for these all-reduces, with nothing to compute beside them
  std::vector<int64_t> exchanged_bytes;  ///< of gradients, sent to other ranks
  std::vector<double> gathering;     ///< of waited: for slices of frozen weights that other ranks have
  std::vector<double> exchanging;    ///< of waited: for gradients of other replicas, with nothing to compute beside their exchange
  std::vector<int64_t> weight_bytes, whole_weight_bytes;  ///< RankTime, of ranks with memory of their own; of others 0
  /// Of ranks with memory of their own: that tensors have held, so far. Of threads: that the rank's part of the run took on the host, at
  /// most; 0 without the counting allocator.
  std::vector<int64_t> peak_bytes;
  /// Of each process: bytes of tensors alive at most, beyond those before the run. Of threads one, of all of them together.
  std::vector<int64_t> round_bytes;
  std::vector<std::vector<SimulatedSpan>> spans;  ///< when it computed which action, from its begin
  std::vector<std::vector<SimulatedSpan>> sent_spans;  ///< when what it sent to other stages was under way (RankMessages::sent_spans), likewise
  std::vector<std::vector<SimulatedSpan>> exchange_spans;  ///< when it exchanged gradients with other replicas (SimulatedRank::exchanges), likewise
  std::vector<std::map<std::string, double>> operator_seconds;  ///< by operator; of a device it is the host's time, which says nothing
};

/// layouts: of the replicas; ranks: of all of them, by rank.
RankTimes times_of_ranks(std::span<const PipelineLayout> layouts, std::vector<RankTime> ranks);

}  // namespace cotune
