// The part of the simulator that moves messages over links.
#include <algorithm>

#include "schedule/pipeline/pipeline_simulator.h"

namespace cotune {

size_t PipelineSimulator::link_at(int32_t from, int32_t to) {
  const auto [found, added] = link_of_.try_emplace({from, to}, links_.size());
  if (added) links_.push_back({.from = from, .to = to});
  return found->second;
}

void PipelineSimulator::begin_send(size_t rank, const Action& action) {
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

void PipelineSimulator::post(size_t rank, const Action& action) {
  const size_t link = link_at(action.peer, static_cast<int32_t>(rank));
  ++links_[link].channels[action.kind == ActionKind::receive_error ? 1 : 0].posted;
  start_transfer(link);
}

void PipelineSimulator::start_transfer(size_t index) {
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
  push(now_s() + wire.seconds(bytes) - wire.latency_s, PipelineEvent::link_free, index);
  push(now_s() + wire.seconds(bytes), PipelineEvent::arrived, index);
  count_transfer(link, 1);
}

void PipelineSimulator::free_link(size_t index) {
  links_[index].busy = false;
  start_transfer(index);
}

void PipelineSimulator::count_transfer(const LinkState& link, int64_t more) {
  for (const int32_t rank : {link.from, link.to}) {
    ranks_[static_cast<size_t>(rank)].transfers += more;
    change_pace(static_cast<size_t>(rank));
  }
}

void PipelineSimulator::finish_transfer(size_t index) {
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

void PipelineSimulator::arrive(const Action& action) {
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

}  // namespace cotune
