#include "schedule/stage/overlap.h"

#include <algorithm>

#include "base/error.h"

namespace cotune {

void check_order(std::span<const SubgraphDag> dags, std::span<const Launch> order, std::span<const LaunchEdge> edges) {
  constexpr int64_t never = -1;
  std::vector<std::vector<int64_t>> place;
  size_t expected = 0;
  for (const SubgraphDag& dag : dags) {
    place.emplace_back(dag.size(), never);
    expected += dag.size();
  }
  COTUNE_CHECK(order.size() == expected, "{} launches of {} subgraphs", order.size(), expected);
  int64_t next = 0;
  for (const auto& [task, index] : order) {
    COTUNE_CHECK(task >= 0 && task < static_cast<int32_t>(dags.size()) && index >= 0 &&
                     index < static_cast<int32_t>(dags[static_cast<size_t>(task)].size()),
                 "task {} has no subgraph {}", task, index);
    std::vector<int64_t>& own = place[static_cast<size_t>(task)];
    COTUNE_CHECK(own[static_cast<size_t>(index)] == never, "task {}, subgraph {} is launched twice", task, index);
    for (const int32_t before : dags[static_cast<size_t>(task)][static_cast<size_t>(index)].predecessors) {
      COTUNE_CHECK(own[static_cast<size_t>(before)] != never, "task {}, subgraph {} is launched before subgraph {}",
                   task, index, before);
    }
    own[static_cast<size_t>(index)] = next++;
  }
  const auto place_of = [&](const Launch& launch) {
    return place.at(static_cast<size_t>(launch.task)).at(static_cast<size_t>(launch.subgraph));
  };
  for (const auto& [before, after] : edges) {
    COTUNE_CHECK(place_of(before) < place_of(after), "task {}, subgraph {} is launched before task {}, subgraph {}", after.task,
                 after.subgraph, before.task, before.subgraph);
  }
}

void DeviceStreams::begin(double now_s) {
  compute_free_s_ = communication_free_s_ = now_s;
  communications_.clear();
  beside_ = 0;
}

void DeviceStreams::wait_until(double then_s) { compute_free_s_ = std::max(compute_free_s_, then_s); }

DeviceStreams::Span DeviceStreams::compute(double earliest_s, double seconds) {
  double start_s = std::max(earliest_s, compute_free_s_);
  if (!rates_.overlap) start_s = std::max(start_s, communication_free_s_);
  double left_s = seconds;
  double now_s = start_s;
  while (beside_ < communications_.size() && communications_[beside_].second <= now_s) ++beside_;
  for (size_t i = beside_; i < communications_.size() && left_s > 0; ++i) {
    const auto [from_s, until_s] = communications_[i];
    const double alone_s = std::min(left_s, std::max(0.0, from_s - now_s));
    left_s -= alone_s;
    now_s += alone_s;
    const double pace = 1 - rates_.communication_share;
    const double shared_s = std::min(left_s / pace, std::max(0.0, until_s - now_s));
    left_s -= shared_s * pace;
    now_s += shared_s;
  }
  compute_free_s_ = now_s + std::max(0.0, left_s);
  return {start_s, compute_free_s_};
}

DeviceStreams::Span DeviceStreams::communicate(double earliest_s, double seconds) {
  const double start_s = std::max(earliest_s, communication_free_s_);
  communication_free_s_ = start_s + seconds / rates_.communication_rate;
  communications_.emplace_back(start_s, communication_free_s_);
  return {start_s, communication_free_s_};
}

StageOverlap simulate_launches(std::span<const SubgraphDag> dags, std::span<const Launch> order,
                               const StreamRates& rates, std::span<const LaunchEdge> edges) {
  COTUNE_CHECK(
      rates.communication_share >= 0 && rates.communication_share < 1 && rates.communication_rate > 0,
      "a communication share of {} at rate {}", rates.communication_share, rates.communication_rate);
  check_order(dags, order, edges);
  StageOverlap result;
  std::vector<std::vector<double>> through_s;  // computed and communicated
  for (const SubgraphDag& dag : dags) through_s.emplace_back(dag.size(), 0.0);
  DeviceStreams streams(rates);
  for (const Launch& launch : order) {
    const Subgraph& subgraph = dags[static_cast<size_t>(launch.task)][static_cast<size_t>(launch.subgraph)];
    std::vector<double>& own = through_s[static_cast<size_t>(launch.task)];
    double earliest_s = 0;
    for (const int32_t before : subgraph.predecessors) {
      if (!subgraph.is_adapter) earliest_s = std::max(earliest_s, own[static_cast<size_t>(before)]);
    }
    const auto [start_s, end_s] = streams.compute(earliest_s, subgraph.compute_s);
    double through = end_s;
    if (subgraph.communication_s > 0) through = streams.communicate(end_s, subgraph.communication_s).end_s;
    own[static_cast<size_t>(launch.subgraph)] = through;
    result.compute_busy_s += end_s - start_s;
    result.makespan_s = std::max(result.makespan_s, through);
  }
  return result;
}

}  // namespace cotune
