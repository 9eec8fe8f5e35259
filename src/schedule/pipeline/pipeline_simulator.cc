#include "schedule/pipeline/pipeline_simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/error.h"

namespace cotune {

PipelineSimulator::PipelineSimulator(const PipelineWork& work, const PipelineSchedule& schedule, const PipelineCluster& cluster,
                                     PipelineEvents& events, size_t replica, ReplicaExchange sharing)
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
    push(slowdown.from_s, PipelineEvent::pace_changes, static_cast<size_t>(slowdown.rank));
    push(slowdown.until_s, PipelineEvent::pace_changes, static_cast<size_t>(slowdown.rank));
  }
}

void PipelineSimulator::begin() {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) advance(rank);
}

void PipelineSimulator::take(const PipelineEvent& event) {
  switch (event.kind) {
    case PipelineEvent::computed:
      if (ranks_[event.index].version == event.version) finish_compute(event.index);
      break;
    case PipelineEvent::copied:
      start_compute(event.index);
      break;
    case PipelineEvent::link_free:
      free_link(event.index);
      break;
    case PipelineEvent::arrived:
      finish_transfer(event.index);
      break;
    case PipelineEvent::pace_changes:
      change_pace(event.index);
      break;
    case PipelineEvent::exchanged:
      advance(event.index);
      break;
  }
}

void PipelineSimulator::exchanged(size_t rank, const JobStep& step, double begin_s, double at_s) {
  exchanged_s_[{step, rank}] = at_s;
  result_.ranks[rank].exchanges.push_back({posted_.at({step, rank}), begin_s, at_s});
  push(at_s, PipelineEvent::exchanged, rank);
}

PipelineSimulation PipelineSimulator::result() {
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

int64_t PipelineSimulator::ranks_left() const {
  int64_t left = 0;
  for (size_t rank = 0; rank < ranks_.size(); ++rank)
    left += ranks_[rank].at < schedule_.ranks[rank].size() ? 1 : 0;
  return left;
}

/// Takes actions until the rank computes or waits.
void PipelineSimulator::advance(size_t rank) {
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
int32_t PipelineSimulator::source_stage(const Action& action) const {
  const int32_t stage = action.kind == ActionKind::backward ? action.stage + 1 : action.stage - 1;
  const bool is_there = stage >= 0 && stage < work_.stage_count();
  return is_there && rank_of(stage) != rank_of(action.stage) ? stage : -1;
}

bool PipelineSimulator::is_ready(size_t rank, const Action& action) const {
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

double PipelineSimulator::seconds(const Action& action) const {
  if (sharing_.costs != nullptr && action.microbatch < 0) {
    const std::vector<double>& by_job =
        action.kind == ActionKind::reduce_gradients ? sharing_.costs->reduce_s : sharing_.costs->optimizer_s;
    return static_cast<size_t>(action.job) < by_job.size() ? by_job[static_cast<size_t>(action.job)] : 0;
  }
  if (action.kind == ActionKind::optimizer_step) return jobs_.at(action.job)->optimizer_s;
  const StageCost& cost = microbatch(action).cost[static_cast<size_t>(action.stage)];
  return action.kind == ActionKind::forward ? cost.forward_s : cost.backward_s;
}

void PipelineSimulator::begin_compute(size_t rank, const Action& action) {
  Rank& state = ranks_[rank];
  state.computing = true;
  const int32_t source = source_stage(action);
  if (!cluster_.overlap && source >= 0 && action.kind != ActionKind::optimizer_step) {
    const double copy_s = cluster_.between(rank_of(source), static_cast<int32_t>(rank))
                              .seconds(microbatch(action).message_bytes.of(action.kind));
    push(now_s() + copy_s, PipelineEvent::copied, rank);
  } else {
    start_compute(rank);
  }
}

void PipelineSimulator::start_compute(size_t rank) {
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

void PipelineSimulator::expect_end(size_t rank) {
  Rank& state = ranks_[rank];
  push(now_s() + state.left_s * state.pace, PipelineEvent::computed, rank, ++state.version);
}

/// Seconds that one second of work takes now.
double PipelineSimulator::pace(size_t rank) const {
  double factor = ranks_[rank].transfers > 0 ? cluster_.transfer_slowdown : 1;
  for (const Slowdown& slowdown : cluster_.slowdowns) {
    if (slowdown.rank == static_cast<int32_t>(rank) && slowdown.from_s <= now_s() &&
        now_s() < slowdown.until_s) {
      factor *= slowdown.factor;
    }
  }
  return factor;
}

void PipelineSimulator::change_pace(size_t rank) {
  Rank& state = ranks_[rank];
  const double next = pace(rank);
  if (next == state.pace || state.left_s == 0) return;
  state.left_s = std::max(0.0, state.left_s - (now_s() - state.pace_since_s) / state.pace);
  state.pace = next;
  state.pace_since_s = now_s();
  expect_end(rank);
}

void PipelineSimulator::finish_compute(size_t rank) {
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

void PipelineSimulator::add_bytes(size_t rank, int64_t bytes) {
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

}  // namespace cotune
