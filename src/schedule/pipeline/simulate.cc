#include "schedule/pipeline/simulate.h"

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <set>

#include "base/error.h"

namespace cotune {
namespace {

struct Event {
  enum Kind { computed, copied, link_free, arrived, pace_changes, exchanged };
  double time_s = 0;
  int64_t number = 0;
  Kind kind = computed;
  size_t replica = 0;
  size_t index = 0;     // of the rank; link_free, arrived: of the link
  int64_t version = 0;  // computed: void unless the rank's
  bool operator>(const Event& other) const {
    return std::pair(time_s, number) > std::pair(other.time_s, other.number);
  }
};

/// Of all replicas.
class Events {
 public:
  double now_s() const { return now_s_; }
  /// Ascending.
  int64_t number() { return number_++; }
  void push(Event event) {
    event.number = number();
    events_.push(event);
  }
  bool empty() const { return events_.empty(); }
  Event pop() {
    const Event event = events_.top();
    events_.pop();
    now_s_ = event.time_s;
    return event;
  }

 private:
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int64_t number_ = 0;
  double now_s_ = 0;
};

/// What a pipeline that is one of several replicas has besides.
struct ReplicaSharing {
  const SharingReplica* costs = nullptr;
  const ExchangeTimes* exchanges = nullptr;
  std::function<void(size_t replica, size_t rank, const JobStep& step)> post;  // gradients are complete there
};

class Simulator {
 public:
  Simulator(const PipelineWork& work, const PipelineSchedule& schedule, const PipelineCluster& cluster, Events& events,
            size_t replica = 0, ReplicaSharing sharing = {})
      : work_(work),
        schedule_(schedule),
        cluster_(cluster),
        events_(events),
        replica_(replica),
        sharing_(std::move(sharing)),
        ranks_(schedule.ranks.size()),
        arrived_(2 * work.microbatches.size() * static_cast<size_t>(work.stage_count()), false) {
    COTUNE_CHECK(schedule.ranks.size() == static_cast<size_t>(work.rank_count),
                 "{} action lists for {} ranks", schedule.ranks.size(), work.rank_count);
    result_.ranks.resize(schedule.ranks.size());
    for (const PipelineJob& job : work.jobs) jobs_[job.job] = &job;
    for (const PipelineMicrobatch& microbatch : work.microbatches) {
      int32_t lowest = work.stage_count();
      for (const JobStep& step : microbatch.jobs) {
        lowest = std::min(lowest, jobs_.at(step.job)->lowest_stage);
        steps_.insert(step);
      }
      lowest_.push_back(lowest);
    }
    for (const Slowdown& slowdown : cluster.slowdowns) {
      if (slowdown.rank < 0 || slowdown.rank >= work.rank_count) continue;
      push(slowdown.from_s, Event::pace_changes, static_cast<size_t>(slowdown.rank));
      push(slowdown.until_s, Event::pace_changes, static_cast<size_t>(slowdown.rank));
    }
  }

  void begin() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) advance(rank);
  }

  void take(const Event& event) {
    switch (event.kind) {
      case Event::computed:
        if (ranks_[event.index].version == event.version) finish_compute(event.index);
        break;
      case Event::copied:
        start_compute(event.index);
        break;
      case Event::link_free:
        free_link(event.index);
        break;
      case Event::arrived:
        finish_transfer(event.index);
        break;
      case Event::pace_changes:
        change_pace(event.index);
        break;
      case Event::exchanged:
        advance(event.index);
        break;
    }
  }

  /// The step's gradients are exchanged on this rank from begin_s on; their sums are there from at_s on.
  void exchanged(size_t rank, const JobStep& step, double begin_s, double at_s) {
    exchanged_s_[{step, rank}] = at_s;
    result_.ranks[rank].exchanges.push_back({posted_.at({step, rank}), begin_s, at_s});
    push(at_s, Event::exchanged, rank);
  }

  bool is_done() const { return ranks_left() == 0; }

  PipelineSimulation result() {
    std::string waiting;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].at < schedule_.ranks[rank].size()) {
        waiting += fmt::format("; rank {} waits at action {}: {}", rank, ranks_[rank].at,
                               to_json_line(schedule_.ranks[rank][ranks_[rank].at]));
      }
    }
    COTUNE_CHECK(waiting.empty(), "deadlock{}", waiting);
    return std::move(result_);
  }

 private:
  struct Rank {
    size_t at = 0;           // next action
    bool computing = false;  // it, or waiting for the end of its own send or copy
    double free_s = 0;       // since when it is not
    double started_s = 0;
    double left_s = 0;  // of the computation, at full pace
    double pace_since_s = 0;
    double pace = 1;
    int64_t version = 0;
    int64_t transfers = 0;  // under way
    int64_t bytes = 0;
  };

  struct Channel {
    std::vector<size_t> sends;  // actions of the sender
    size_t posted = 0;
    size_t taken = 0;             // have left
    std::vector<int64_t> queued;  // moment of each send, as a number
  };
  struct LinkState {
    int32_t from = 0;
    int32_t to = 0;
    std::array<Channel, 2> channels;  // activations, errors
    bool busy = false;
    std::deque<std::pair<size_t, double>> under_way;  // the send's action, and when it left
  };

  double now_s() const { return events_.now_s(); }
  void push(double time_s, Event::Kind kind, size_t index, int64_t version = 0) {
    events_.push({.time_s = time_s, .kind = kind, .replica = replica_, .index = index, .version = version});
  }

  int64_t ranks_left() const {
    int64_t left = 0;
    for (size_t rank = 0; rank < ranks_.size(); ++rank)
      left += ranks_[rank].at < schedule_.ranks[rank].size() ? 1 : 0;
    return left;
  }

  const Action& action_of(size_t rank) const { return schedule_.ranks[rank][ranks_[rank].at]; }
  int32_t rank_of(int32_t stage) const { return work_.stage_rank[static_cast<size_t>(stage)]; }
  const PipelineMicrobatch& microbatch(const Action& action) const {
    return work_.microbatches[static_cast<size_t>(action.microbatch)];
  }
  size_t arrival(bool is_error, int32_t microbatch, int32_t stage) const {
    return 2 * static_cast<size_t>(microbatch * work_.stage_count() + stage) + (is_error ? 1 : 0);
  }

  /// Takes actions until the rank computes or waits.
  void advance(size_t rank) {
    Rank& state = ranks_[rank];
    while (!state.computing && state.at < schedule_.ranks[rank].size()) {
      const Action& action = action_of(rank);
      switch (action.kind) {
        case ActionKind::forward:
        case ActionKind::backward:
        case ActionKind::optimizer_step:
          if (!is_ready(rank, action)) return;
          if (is_shared_step(action)) result_.ranks[rank].exchange_wait_s += now_s() - state.free_s;
          begin_compute(rank, action);
          break;
        case ActionKind::reduce_gradients:
          COTUNE_CHECK(sharing_.costs != nullptr, "rank {}, action {}: gradients are exchanged with no other replica", rank, state.at);
          state.computing = true;
          start_compute(rank);
          break;
        case ActionKind::send_activation:
        case ActionKind::send_error:
          begin_send(rank, action);
          break;
        case ActionKind::receive_activation:
        case ActionKind::receive_error:
          add_bytes(rank, action.bytes);
          post(rank, action);
          ++state.at;
          break;
        case ActionKind::free:
          if (lowest_[static_cast<size_t>(action.microbatch)] <= action.stage) {
            add_bytes(rank, -microbatch(action).cost[static_cast<size_t>(action.stage)].kept_bytes);
          }
          ++state.at;
          break;
        default:
          COTUNE_CHECK(false, "rank {}, action {}: no {} in a pipeline schedule", rank, state.at,
                       to_string(action.kind));
      }
    }
  }

  /// The stage that a computation gets a message from; -1: none, it is the rank's own or there is none.
  int32_t source_stage(const Action& action) const {
    const int32_t stage = action.kind == ActionKind::backward ? action.stage + 1 : action.stage - 1;
    const bool is_there = stage >= 0 && stage < work_.stage_count();
    return is_there && rank_of(stage) != rank_of(action.stage) ? stage : -1;
  }

  bool is_shared_step(const Action& action) const { return sharing_.costs != nullptr && action.kind == ActionKind::optimizer_step; }

  bool is_ready(size_t rank, const Action& action) const {
    if (is_shared_step(action)) {
      const JobStep step{action.job, action.job_step};
      const auto known = exchanged_s_.find({step, rank});
      return !sharing_.exchanges->has(step) || (known != exchanged_s_.end() && known->second <= now_s());
    }
    if (source_stage(action) < 0) return true;
    if (action.kind == ActionKind::optimizer_step) {
      return jobs_.at(action.job)->lowest_stage == action.stage ||
             norms_.contains({{action.job, action.job_step}, action.stage});
    }
    return arrived_[arrival(action.kind == ActionKind::backward, action.microbatch, action.stage)];
  }

  double seconds(const Action& action) const {
    if (sharing_.costs != nullptr && action.microbatch < 0) {
      const std::vector<double>& by_job =
          action.kind == ActionKind::reduce_gradients ? sharing_.costs->reduce_s : sharing_.costs->optimizer_s;
      return static_cast<size_t>(action.job) < by_job.size() ? by_job[static_cast<size_t>(action.job)] : 0;
    }
    if (action.kind == ActionKind::optimizer_step) return jobs_.at(action.job)->optimizer_s;
    const StageCost& cost = microbatch(action).cost[static_cast<size_t>(action.stage)];
    return action.kind == ActionKind::forward ? cost.forward_s : cost.backward_s;
  }

  void begin_compute(size_t rank, const Action& action) {
    Rank& state = ranks_[rank];
    state.computing = true;
    const int32_t source = source_stage(action);
    if (!cluster_.overlap && source >= 0 && action.kind != ActionKind::optimizer_step) {
      const double copy_s = cluster_.between(rank_of(source), static_cast<int32_t>(rank))
                                .seconds(microbatch(action).message_bytes.of(action.kind));
      push(now_s() + copy_s, Event::copied, rank);
    } else {
      start_compute(rank);
    }
  }

  void start_compute(size_t rank) {
    Rank& state = ranks_[rank];
    const Action& action = action_of(rank);
    state.started_s = state.pace_since_s = now_s();
    state.left_s = seconds(action);
    state.pace = pace(rank);
    if (action.kind == ActionKind::forward &&
        lowest_[static_cast<size_t>(action.microbatch)] <= action.stage) {
      add_bytes(rank, microbatch(action).cost[static_cast<size_t>(action.stage)].kept_bytes);
    }
    expect_end(rank);
  }

  void expect_end(size_t rank) {
    Rank& state = ranks_[rank];
    push(now_s() + state.left_s * state.pace, Event::computed, rank, ++state.version);
  }

  /// Seconds that one second of work takes now.
  double pace(size_t rank) const {
    double factor = ranks_[rank].transfers > 0 ? cluster_.transfer_slowdown : 1;
    for (const Slowdown& slowdown : cluster_.slowdowns) {
      if (slowdown.rank == static_cast<int32_t>(rank) && slowdown.from_s <= now_s() &&
          now_s() < slowdown.until_s) {
        factor *= slowdown.factor;
      }
    }
    return factor;
  }

  void change_pace(size_t rank) {
    Rank& state = ranks_[rank];
    const double next = pace(rank);
    if (next == state.pace || state.left_s == 0) return;
    state.left_s = std::max(0.0, state.left_s - (now_s() - state.pace_since_s) / state.pace);
    state.pace = next;
    state.pace_since_s = now_s();
    expect_end(rank);
  }

  void finish_compute(size_t rank) {
    Rank& state = ranks_[rank];
    const Action& action = action_of(rank);
    result_.makespan_s = std::max(result_.makespan_s, now_s());
    if (action.kind == ActionKind::reduce_gradients) {
      state.left_s = 0;
      state.computing = false;
      state.free_s = now_s();
      posted_[{{action.job, action.job_step}, rank}] = state.at;
      ++state.at;
      sharing_.post(replica_, rank, {action.job, action.job_step});
      advance(rank);
      return;
    }
    result_.ranks[rank].spans.push_back({state.at, state.started_s, now_s()});
    result_.ranks[rank].busy_s += now_s() - state.started_s;
    if (!is_shared_step(action) && source_stage(action) >= 0) {
      if (action.kind != ActionKind::optimizer_step) {
        add_bytes(rank, -microbatch(action).message_bytes.of(action.kind));
      } else if (jobs_.at(action.job)->lowest_stage < action.stage &&
                 !steps_.contains({action.job, action.job_step + 1})) {
        add_bytes(rank, -norm_message_bytes);
      }
    }
    state.left_s = 0;
    state.computing = false;
    state.free_s = now_s();
    ++state.at;
    advance(rank);
  }

  size_t link_at(int32_t from, int32_t to) {
    const auto [found, added] = link_of_.try_emplace({from, to}, links_.size());
    if (added) links_.push_back({.from = from, .to = to});
    return found->second;
  }

  void begin_send(size_t rank, const Action& action) {
    Rank& state = ranks_[rank];
    const size_t link = link_at(static_cast<int32_t>(rank), action.peer);
    Channel& channel = links_[link].channels[action.kind == ActionKind::send_error ? 1 : 0];
    channel.sends.push_back(state.at);
    channel.queued.push_back(events_.number());
    add_bytes(rank, action.bytes);
    if (cluster_.overlap) {
      ++state.at;
    } else {
      state.computing = true;
    }
    start_transfer(link);
  }

  void post(size_t rank, const Action& action) {
    const size_t link = link_at(action.peer, static_cast<int32_t>(rank));
    ++links_[link].channels[action.kind == ActionKind::receive_error ? 1 : 0].posted;
    start_transfer(link);
  }

  void start_transfer(size_t index) {
    LinkState& link = links_[index];
    if (link.busy) return;
    size_t chosen = link.channels.size();
    for (size_t c = 0; c < link.channels.size(); ++c) {
      const Channel& channel = link.channels[c];
      if (channel.taken >= channel.sends.size() || channel.taken >= channel.posted) continue;
      if (chosen == link.channels.size() ||
          channel.queued[channel.taken] < link.channels[chosen].queued[link.channels[chosen].taken]) {
        chosen = c;
      }
    }
    if (chosen == link.channels.size()) return;
    Channel& channel = link.channels[chosen];
    const size_t send = channel.sends[channel.taken++];
    const int64_t bytes = schedule_.ranks[static_cast<size_t>(link.from)][send].bytes;
    const Link& wire = cluster_.between(link.from, link.to);
    link.busy = true;
    link.under_way.emplace_back(send, now_s());
    push(now_s() + wire.seconds(bytes) - wire.latency_s, Event::link_free, index);
    push(now_s() + wire.seconds(bytes), Event::arrived, index);
    count_transfer(link, 1);
  }

  void free_link(size_t index) {
    links_[index].busy = false;
    start_transfer(index);
  }

  void count_transfer(const LinkState& link, int64_t more) {
    for (const int32_t rank : {link.from, link.to}) {
      ranks_[static_cast<size_t>(rank)].transfers += more;
      change_pace(static_cast<size_t>(rank));
    }
  }

  void finish_transfer(size_t index) {
    LinkState& link = links_[index];
    const auto [send, left_s] = link.under_way.front();
    link.under_way.pop_front();
    const auto from = static_cast<size_t>(link.from);
    const auto to = static_cast<size_t>(link.to);
    const Action& action = schedule_.ranks[from][send];
    result_.transfers.push_back({link.from, link.to, send, left_s, now_s()});
    result_.makespan_s = std::max(result_.makespan_s, now_s());
    arrive(action);
    add_bytes(from, -action.bytes);
    count_transfer(link, -1);
    if (!cluster_.overlap) {
      ranks_[from].computing = false;
      ranks_[from].free_s = now_s();
      ++ranks_[from].at;
      advance(from);
    }
    advance(to);
  }

  void arrive(const Action& action) {
    if (action.microbatch < 0) {
      result_.norm_message_count += 1;
      norms_.insert({{action.job, action.job_step}, action.stage});
      return;
    }
    result_.message_count += 1;
    result_.message_bytes += action.bytes;
    const bool is_error = action.kind == ActionKind::send_error;
    arrived_[arrival(is_error, action.microbatch, action.stage)] = true;
    if (is_error) return;
    for (const JobStep& step : microbatch(action).jobs)
      norms_.insert({{step.job, step.step - 1}, action.stage});
  }

  void add_bytes(size_t rank, int64_t bytes) {
    if (bytes == 0) return;
    SimulatedRank& result = result_.ranks[rank];
    ranks_[rank].bytes += bytes;
    result.peak_bytes = std::max(result.peak_bytes, ranks_[rank].bytes);
    if (!result.memory.empty() && result.memory.back().time_s == now_s()) {
      result.memory.back().bytes = ranks_[rank].bytes;
    } else {
      result.memory.push_back({now_s(), ranks_[rank].bytes});
    }
  }

  const PipelineWork& work_;
  const PipelineSchedule& schedule_;
  const PipelineCluster& cluster_;
  Events& events_;
  const size_t replica_;
  const ReplicaSharing sharing_;
  std::vector<Rank> ranks_;
  std::vector<LinkState> links_;
  std::map<std::pair<int32_t, int32_t>, size_t> link_of_;
  std::map<int32_t, const PipelineJob*> jobs_;
  std::vector<int32_t> lowest_;  // lowest stage by microbatch
  std::set<JobStep> steps_;      // in the work
  std::vector<bool> arrived_;
  std::set<std::pair<JobStep, int32_t>> norms_;  // known on a stage
  std::map<std::pair<JobStep, size_t>, size_t> posted_;       // by rank: the action that has
  std::map<std::pair<JobStep, size_t>, double> exchanged_s_;  // likewise
  PipelineSimulation result_;
};

/// Simulators of all replicas, and the exchanges between them.
class ReplicaSimulator {
 public:
  ReplicaSimulator(std::span<const SharingReplica> replicas, const ExchangeCosts& costs, std::span<const JobStep> order)
      : replicas_(replicas), exchanges_(costs, order) {
    for (size_t replica = 0; replica < replicas.size(); ++replica) {
      const SharingReplica& own = replicas[replica];
      const auto on_post = [this](size_t from, size_t rank, const JobStep& step) { post(from, rank, step); };
      simulators_.emplace_back(*own.work, *own.schedule, own.cluster, events_, replica, ReplicaSharing{&own, &exchanges_, on_post});
    }
  }

  std::vector<PipelineSimulation> run() {
    for (Simulator& simulator : simulators_) simulator.begin();
    const auto is_done = [](const Simulator& simulator) { return simulator.is_done(); };
    while (!events_.empty() && !std::ranges::all_of(simulators_, is_done)) {
      const Event event = events_.pop();
      simulators_[event.replica].take(event);
    }
    std::vector<PipelineSimulation> results;
    for (Simulator& simulator : simulators_) results.push_back(simulator.result());
    return results;
  }

 private:
  /// The ranks that divide the layers of a place post together, and go on when all of them have the sums.
  void post(size_t replica, size_t place, const JobStep& step) {
    std::map<std::pair<JobStep, std::pair<size_t, size_t>>, ExchangeTimes::End> ends;  // of all parts, by step, replica and place
    const SharingReplica& own = replicas_[replica];
    for (int32_t part = 0; part < own.tensor_parallel; ++part) {
      const int32_t rank = own.first_rank + static_cast<int32_t>(place) * own.tensor_parallel + part;
      for (const ExchangeTimes::End& end : exchanges_.post(step, rank, events_.now_s())) {
        ExchangeTimes::End& all = ends.try_emplace({end.step, place_of(end.rank)}, end).first->second;
        all.begin_s = std::min(all.begin_s, end.begin_s);
        all.at_s = std::max(all.at_s, end.at_s);
      }
    }
    for (const auto& [known, end] : ends) {
      const auto& [ended, at] = known;
      simulators_[at.first].exchanged(at.second, ended, end.begin_s, end.at_s);
    }
  }

  std::pair<size_t, size_t> place_of(int32_t rank) const {
    const auto after = std::ranges::find_if(replicas_, [&](const SharingReplica& each) { return each.first_rank > rank; });
    const auto replica = static_cast<size_t>(after - replicas_.begin()) - 1;
    return {replica, static_cast<size_t>((rank - replicas_[replica].first_rank) / replicas_[replica].tensor_parallel)};
  }

  std::span<const SharingReplica> replicas_;
  ExchangeTimes exchanges_;
  Events events_;
  std::deque<Simulator> simulators_;
};

}  // namespace

PipelineSimulation simulate(const PipelineWork& work, const PipelineSchedule& schedule,
                            const PipelineCluster& cluster) {
  check(work);
  Events events;
  Simulator simulator(work, schedule, cluster, events);
  simulator.begin();
  while (!events.empty() && !simulator.is_done()) simulator.take(events.pop());
  return simulator.result();
}

std::vector<PipelineSimulation> simulate(std::span<const SharingReplica> replicas, const ExchangeCosts& costs,
                                         std::span<const JobStep> order) {
  return ReplicaSimulator(replicas, costs, order).run();
}

std::vector<SimulatedSpan> since(double begin_s, std::vector<SimulatedSpan> spans) {
  for (SimulatedSpan& span : spans) {
    span.start_s -= begin_s;
    span.end_s -= begin_s;
  }
  return spans;
}

double PipelineSimulation::bubble_ratio(size_t rank) const {
  return makespan_s > 0 ? 1 - ranks[rank].busy_s / makespan_s : 0;
}

double PipelineSimulation::bubble_ratio() const {
  return idle_share(0, makespan_s);
}

double PipelineSimulation::idle_share(double from_s, double until_s) const {
  if (until_s <= from_s || ranks.empty()) return 0;
  double busy_s = 0;
  for (const SimulatedRank& rank : ranks) {
    for (const SimulatedSpan& span : rank.spans) {
      busy_s += std::max(0.0, std::min(span.end_s, until_s) - std::max(span.start_s, from_s));
    }
  }
  return 1 - busy_s / ((until_s - from_s) * static_cast<double>(ranks.size()));
}

}  // namespace cotune
