#include "schedule/stage/overlap.h"

#include <algorithm>

#include "base/error.h"

namespace cotune {
namespace {

void check_order(std::span<const SubgraphDag> dags, std::span<const Launch> order) {
  std::vector<std::vector<bool>> launched;
  size_t expected = 0;
  for (const SubgraphDag& dag : dags) {
    launched.emplace_back(dag.size(), false);
    expected += dag.size();
  }
  COTUNE_CHECK(order.size() == expected, "{} launches of {} subgraphs", order.size(), expected);
  for (const auto& [task, index] : order) {
    COTUNE_CHECK(task >= 0 && task < static_cast<int32_t>(dags.size()) && index >= 0 &&
                     index < static_cast<int32_t>(dags[static_cast<size_t>(task)].size()),
                 "task {} has no subgraph {}", task, index);
    std::vector<bool>& own = launched[static_cast<size_t>(task)];
    COTUNE_CHECK(!own[static_cast<size_t>(index)], "task {}, subgraph {} is launched twice", task, index);
    for (const int32_t before : dags[static_cast<size_t>(task)][static_cast<size_t>(index)].predecessors) {
      COTUNE_CHECK(own[static_cast<size_t>(before)], "task {}, subgraph {} is launched before subgraph {}",
                   task, index, before);
    }
    own[static_cast<size_t>(index)] = true;
  }
}

}  // namespace

StageOverlap simulate_launches(std::span<const SubgraphDag> dags, std::span<const Launch> order,
                               const StreamRates& rates) {
  COTUNE_CHECK(
      rates.communication_share >= 0 && rates.communication_share < 1 && rates.communication_rate > 0,
      "a communication share of {} at rate {}", rates.communication_share, rates.communication_rate);
  check_order(dags, order);
  StageOverlap result;
  std::vector<std::vector<double>> through_s;  // computed and communicated
  for (const SubgraphDag& dag : dags) through_s.emplace_back(dag.size(), 0.0);
  double compute_free_s = 0;
  double communication_free_s = 0;
  // Communications so far, as spans in time: what a computation that starts now runs beside.
  std::vector<std::pair<double, double>> communications;
  size_t beside = 0;  // the first that may still be under way
  for (const Launch& launch : order) {
    const Subgraph& subgraph = dags[static_cast<size_t>(launch.task)][static_cast<size_t>(launch.subgraph)];
    std::vector<double>& own = through_s[static_cast<size_t>(launch.task)];
    double start_s = rates.overlap ? compute_free_s : std::max(compute_free_s, communication_free_s);
    for (const int32_t before : subgraph.predecessors)
      start_s = std::max(start_s, own[static_cast<size_t>(before)]);
    // All communications beside this computation are queued already: they follow earlier computations.
    double left_s = subgraph.compute_s;
    double now_s = start_s;
    while (beside < communications.size() && communications[beside].second <= now_s) ++beside;
    for (size_t i = beside; i < communications.size() && left_s > 0; ++i) {
      const auto [from_s, until_s] = communications[i];
      const double alone_s = std::min(left_s, std::max(0.0, from_s - now_s));
      left_s -= alone_s;
      now_s += alone_s;
      const double pace = 1 - rates.communication_share;
      const double shared_s = std::min(left_s / pace, std::max(0.0, until_s - now_s));
      left_s -= shared_s * pace;
      now_s += shared_s;
    }
    const double end_s = now_s + std::max(0.0, left_s);
    LaunchSpan span{launch, start_s, end_s, end_s, end_s};
    if (subgraph.communication_s > 0) {
      span.communication_start_s = std::max(end_s, communication_free_s);
      span.communication_end_s =
          span.communication_start_s + subgraph.communication_s / rates.communication_rate;
      communication_free_s = span.communication_end_s;
      communications.emplace_back(span.communication_start_s, span.communication_end_s);
      result.communication_busy_s += span.communication_end_s - span.communication_start_s;
    }
    compute_free_s = end_s;
    own[static_cast<size_t>(launch.subgraph)] = span.communication_end_s;
    result.compute_busy_s += end_s - start_s;
    result.makespan_s = std::max(result.makespan_s, span.communication_end_s);
    result.spans.push_back(span);
  }
  return result;
}

}  // namespace cotune
