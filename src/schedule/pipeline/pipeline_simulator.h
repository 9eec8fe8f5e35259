#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "schedule/pipeline/exchange_times.h"
#include "schedule/pipeline/pipeline_events.h"
#include "schedule/pipeline/simulate.h"

namespace cotune {

/// What a pipeline that is one of several replicas has besides.
struct ReplicaExchange {
  const ExchangingReplica* costs = nullptr;
  const ExchangeTimes* exchanges = nullptr;
  std::function<void(size_t replica, size_t rank, const JobStep& step)> post;  ///< gradients are complete there
};

/// One pipeline that runs its schedule, as simulate() says. Whoever has made it calls begin(), and take() with each of its events as
/// they come, until is_done() or there are none left.
class PipelineSimulator {
 public:
  /// All that is given by reference must outlive this. replica: of its events; sharing: nothing where there is no other.
  /// Throws InternalError where the schedule has not one list for each rank.
  PipelineSimulator(const PipelineWork& work, const PipelineSchedule& schedule, const PipelineCluster& cluster, PipelineEvents& events,
                    size_t replica = 0, ReplicaExchange sharing = {});

  void begin();
  void take(const PipelineEvent& event);

  /// The step's gradients are exchanged on this rank from begin_s on; their sums are there from at_s on.
  void exchanged(size_t rank, const JobStep& step, double begin_s, double at_s);

  bool is_done() const { return ranks_left() == 0; }

  /// At the end, once. Throws InternalError where ranks wait for each other.
  PipelineSimulation result();

 private:
  struct Rank {
    size_t at = 0;           ///< next action
    bool computing = false;  ///< it, or waiting for the end of its own send or copy
    double free_s = 0;       ///< since when it is not
    double started_s = 0;
    double left_s = 0;  ///< of the computation, at full pace
    double pace_since_s = 0;
    double pace = 1;
    int64_t version = 0;
    int64_t transfers = 0;  ///< under way
    int64_t bytes = 0;
  };

  struct Channel {
    std::vector<size_t> sends;  ///< actions of the sender
    size_t posted = 0;
    size_t taken = 0;             ///< have left
    std::vector<int64_t> queued;  ///< moment of each send, as a number
  };
  struct LinkState {
    int32_t from = 0;
    int32_t to = 0;
    std::array<Channel, 2> channels;  ///< activations, errors
    bool busy = false;
    std::deque<std::pair<size_t, double>> under_way;  ///< the send's action, and when it left
  };

  double now_s() const { return events_.now_s(); }
  void push(double time_s, PipelineEvent::Kind kind, size_t index, int64_t version = 0) {
    events_.push({.time_s = time_s, .kind = kind, .replica = replica_, .index = index, .version = version});
  }

  const Action& action_of(size_t rank) const { return schedule_.ranks[rank][ranks_[rank].at]; }
  int32_t rank_of(int32_t stage) const { return work_.stage_rank[static_cast<size_t>(stage)]; }
  const PipelineMicrobatch& microbatch(const Action& action) const {
    return work_.microbatches[static_cast<size_t>(action.microbatch)];
  }
  size_t arrival(bool is_error, int32_t microbatch, int32_t stage) const {
    return 2 * static_cast<size_t>(microbatch * work_.stage_count() + stage) + (is_error ? 1 : 0);
  }
  bool is_shared_step(const Action& action) const { return sharing_.costs != nullptr && action.kind == ActionKind::optimizer_step; }

  int64_t ranks_left() const;
  void advance(size_t rank);
  int32_t source_stage(const Action& action) const;
  bool is_ready(size_t rank, const Action& action) const;
  double seconds(const Action& action) const;
  void begin_compute(size_t rank, const Action& action);
  void start_compute(size_t rank);
  void expect_end(size_t rank);
  double pace(size_t rank) const;
  void change_pace(size_t rank);
  void finish_compute(size_t rank);
  void add_bytes(size_t rank, int64_t bytes);

  // Messages (pipeline_simulator_messages.cc).
  size_t link_at(int32_t from, int32_t to);
  void begin_send(size_t rank, const Action& action);
  void post(size_t rank, const Action& action);
  void start_transfer(size_t index);
  void free_link(size_t index);
  void count_transfer(const LinkState& link, int64_t more);
  void finish_transfer(size_t index);
  void arrive(const Action& action);

  const PipelineWork& work_;
  const PipelineSchedule& schedule_;
  const PipelineCluster& cluster_;
  PipelineEvents& events_;
  const size_t replica_;
  const ReplicaExchange sharing_;
  std::vector<Rank> ranks_;
  std::vector<LinkState> links_;
  std::map<std::pair<int32_t, int32_t>, size_t> link_of_;
  std::map<int32_t, const PipelineJob*> jobs_;
  std::vector<int32_t> lowest_;  ///< lowest stage by microbatch
  std::set<JobStep> steps_;      ///< in the work
  std::vector<bool> arrived_;
  std::set<std::pair<JobStep, int32_t>> norms_;  ///< known on a stage
  std::map<std::pair<JobStep, size_t>, size_t> posted_;       ///< by rank: the action that has
  std::map<std::pair<JobStep, size_t>, double> exchanged_s_;  ///< likewise
  PipelineSimulation result_;
};

}  // namespace cotune
