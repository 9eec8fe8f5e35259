#pragma once

#include <list>
#include <vector>

#include "engine/rank_group.h"
#include "schedule/pipeline/render.h"

namespace cotune {

/// What the ranks of a run were planned to do, and what they did: two tracks of each rank's forwards, backwards and optimizer steps, those
/// of rounds that ran at once beginning together; beside each what it exchanged with other replicas; and the messages between stages
/// (RankMessages::sent_spans).
class RankTracks {
 public:
  /// begin_s: when the rounds began, by the clock of all calls. is_evaluation: plans are of a training round, and so left out.
  void add(const ReplicaPlans& plans, const RankTimes& times, double begin_s, bool is_evaluation);
  size_t span_count() const { return span_count_; }  ///< of what they did
  /// For render_trace, as the processes from first_process on, of which times count from origin_s. They point into this.
  std::vector<TracedRun> runs(bool emulated, int64_t first_process, double origin_s) const;

 private:
  struct Rounds {
    PipelineSchedule planned, executed;
    PipelineSimulation predicted, measured;
    bool is_evaluation = false;
    int64_t first_rank = 0;  ///< of its replica
    double begin_s = 0;
  };
  std::list<Rounds> rounds_;
  size_t span_count_ = 0;
};

}  // namespace cotune
