#include "schedule/pipeline/simulate.h"

#include <algorithm>
#include <deque>
#include <map>

#include "schedule/pipeline/pipeline_simulator.h"

namespace cotune {
namespace {

/// Simulators of all replicas, and the exchanges between them.
class ReplicaSimulator {
 public:
  ReplicaSimulator(std::span<const ExchangingReplica> replicas, const ExchangeCosts& costs, std::span<const JobStep> order)
      : replicas_(replicas), exchanges_(costs, order) {
    for (size_t replica = 0; replica < replicas.size(); ++replica) {
      const ExchangingReplica& own = replicas[replica];
      const auto on_post = [this](size_t from, size_t rank, const JobStep& step) { post(from, rank, step); };
      simulators_.emplace_back(*own.work, *own.schedule, own.cluster, events_, replica, ReplicaExchange{&own, &exchanges_, on_post});
    }
  }

  std::vector<PipelineSimulation> run() {
    for (PipelineSimulator& simulator : simulators_) simulator.begin();
    const auto is_done = [](const PipelineSimulator& simulator) { return simulator.is_done(); };
    while (!events_.empty() && !std::ranges::all_of(simulators_, is_done)) {
      const PipelineEvent event = events_.pop();
      simulators_[event.replica].take(event);
    }
    std::vector<PipelineSimulation> results;
    for (PipelineSimulator& simulator : simulators_) results.push_back(simulator.result());
    return results;
  }

 private:
  /// The ranks that divide the layers of a place post together, and go on when all of them have the sums.
  void post(size_t replica, size_t place, const JobStep& step) {
    std::map<std::pair<JobStep, std::pair<size_t, size_t>>, ExchangeTimes::End> ends;  // of all parts, by step, replica and place
    const ExchangingReplica& own = replicas_[replica];
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
    const auto after = std::ranges::find_if(replicas_, [&](const ExchangingReplica& each) { return each.first_rank > rank; });
    const auto replica = static_cast<size_t>(after - replicas_.begin()) - 1;
    return {replica, static_cast<size_t>((rank - replicas_[replica].first_rank) / replicas_[replica].tensor_parallel)};
  }

  std::span<const ExchangingReplica> replicas_;
  ExchangeTimes exchanges_;
  PipelineEvents events_;
  std::deque<PipelineSimulator> simulators_;
};

}  // namespace

PipelineSimulation simulate(const PipelineWork& work, const PipelineSchedule& schedule,
                            const PipelineCluster& cluster) {
  check(work);
  PipelineEvents events;
  PipelineSimulator simulator(work, schedule, cluster, events);
  simulator.begin();
  while (!events.empty() && !simulator.is_done()) simulator.take(events.pop());
  return simulator.result();
}

std::vector<PipelineSimulation> simulate(std::span<const ExchangingReplica> replicas, const ExchangeCosts& costs,
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
