#include "schedule/stage/launch_order.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace cotune {
namespace {

/// Launches one after the other what `choose` picks of what is ready; ready: all predecessors are launched.
class Launcher {
 public:
  Launcher(std::span<const SubgraphDag> dags, std::span<const LaunchEdge> edges) : dags_(dags) {
    for (size_t task = 0; task < dags.size(); ++task) {
      check(dags[task]);
      std::vector<int32_t>& missing = missing_.emplace_back();
      std::vector<std::vector<int32_t>>& successors = successors_.emplace_back(dags[task].size());
      for (size_t i = 0; i < dags[task].size(); ++i) {
        missing.push_back(static_cast<int32_t>(dags[task][i].predecessors.size()));
        for (const int32_t before : dags[task][i].predecessors) {
          successors[static_cast<size_t>(before)].push_back(static_cast<int32_t>(i));
        }
      }
    }
    for (const LaunchEdge& edge : edges) {
      after_[{edge.before.task, edge.before.subgraph}].push_back(edge.after);
      ++missing_of(edge.after);
    }
    for (size_t task = 0; task < dags.size(); ++task) {
      for (size_t i = 0; i < dags[task].size(); ++i) {
        if (missing_[task][i] == 0) ready_.push_back({static_cast<int32_t>(task), static_cast<int32_t>(i)});
      }
    }
  }

  const Subgraph& subgraph(const Launch& launch) const {
    return dags_[static_cast<size_t>(launch.task)][static_cast<size_t>(launch.subgraph)];
  }
  const std::vector<int32_t>& successors(const Launch& launch) const {
    return successors_[static_cast<size_t>(launch.task)][static_cast<size_t>(launch.subgraph)];
  }

  /// `is_before(a, b)`: whether a goes first; `launched(a)`: a has been launched.
  std::vector<Launch> run(const std::function<bool(const Launch&, const Launch&)>& is_before,
                          const std::function<void(const Launch&)>& launched) {
    std::vector<Launch> order;
    while (!ready_.empty()) {
      const auto next = std::min_element(ready_.begin(), ready_.end(), is_before);
      const Launch launch = *next;
      ready_.erase(next);
      order.push_back(launch);
      launched(launch);
      for (const int32_t after : successors(launch)) make_ready({launch.task, after});
      const auto others = after_.find({launch.task, launch.subgraph});
      if (others == after_.end()) continue;
      for (const Launch& after : others->second) make_ready(after);
    }
    return order;
  }

 private:
  int32_t& missing_of(const Launch& launch) {
    return missing_[static_cast<size_t>(launch.task)][static_cast<size_t>(launch.subgraph)];
  }
  void make_ready(const Launch& launch) {
    if (--missing_of(launch) == 0) ready_.push_back(launch);
  }

  std::span<const SubgraphDag> dags_;
  std::vector<std::vector<int32_t>> missing_;
  std::vector<std::vector<std::vector<int32_t>>> successors_;
  std::map<std::pair<int32_t, int32_t>, std::vector<Launch>> after_;  ///< of other tasks
  std::vector<Launch> ready_;
};

/// One task whose subgraphs follow each other: a forward pass by itself.
bool has_one_order(std::span<const SubgraphDag> dags) {
  if (dags.size() != 1) return false;
  for (size_t i = 1; i < dags.front().size(); ++i) {
    const std::vector<int32_t>& before = dags.front()[i].predecessors;
    if (std::find(before.begin(), before.end(), static_cast<int32_t>(i) - 1) == before.end()) return false;
  }
  return true;
}

}  // namespace

std::vector<Launch> task_by_task(std::span<const SubgraphDag> dags) {
  std::vector<Launch> order;
  for (size_t task = 0; task < dags.size(); ++task) {
    check(dags[task]);
    for (size_t i = 0; i < dags[task].size(); ++i)
      order.push_back({static_cast<int32_t>(task), static_cast<int32_t>(i)});
  }
  return order;
}

std::vector<Launch> launch_by_priority(std::span<const SubgraphDag> dags, LatencyPreference preference,
                                       std::span<const LaunchEdge> edges) {
  Launcher launcher(dags, edges);
  const auto key = [&](const Launch& launch) {
    const Subgraph& subgraph = launcher.subgraph(launch);
    const double latency =
        preference == LatencyPreference::longest ? -subgraph.compute_s : subgraph.compute_s;
    return std::tuple(subgraph.depth, latency, launch.task, launch.subgraph);
  };
  return launcher.run([&](const Launch& a, const Launch& b) { return key(a) < key(b); },
                      [](const Launch&) {});
}

std::vector<Launch> launch_by_remaining_path(std::span<const SubgraphDag> dags, const StreamRates& rates,
                                             std::span<const LaunchEdge> edges) {
  Launcher launcher(dags, edges);
  std::vector<std::vector<double>> remaining_s;
  std::vector<std::vector<double>> through_s;
  for (size_t task = 0; task < dags.size(); ++task) {
    std::vector<double>& own = remaining_s.emplace_back(dags[task].size(), 0.0);
    through_s.emplace_back(dags[task].size(), 0.0);
    for (size_t i = dags[task].size(); i-- > 0;) {
      const Launch launch{static_cast<int32_t>(task), static_cast<int32_t>(i)};
      double after = 0;
      for (const int32_t next : launcher.successors(launch))
        after = std::max(after, own[static_cast<size_t>(next)]);
      own[i] = dags[task][i].compute_s + dags[task][i].communication_s / rates.communication_rate + after;
    }
  }
  double compute_free_s = 0;
  double communication_free_s = 0;
  const auto start_s = [&](const Launch& launch) {
    double start = rates.overlap ? compute_free_s : std::max(compute_free_s, communication_free_s);
    const Subgraph& subgraph = launcher.subgraph(launch);
    for (const int32_t before : subgraph.is_adapter ? std::vector<int32_t>() : subgraph.predecessors) {
      start = std::max(start, through_s[static_cast<size_t>(launch.task)][static_cast<size_t>(before)]);
    }
    return start;
  };
  const auto key = [&](const Launch& launch) {
    return std::tuple(start_s(launch),
                      -remaining_s[static_cast<size_t>(launch.task)][static_cast<size_t>(launch.subgraph)],
                      launch.task, launch.subgraph);
  };
  return launcher.run([&](const Launch& a, const Launch& b) { return key(a) < key(b); },
                      [&](const Launch& launch) {
                        const Subgraph& subgraph = launcher.subgraph(launch);
                        compute_free_s = start_s(launch) + subgraph.compute_s;
                        double through = compute_free_s;
                        if (subgraph.communication_s > 0) {
                          through = std::max(through, communication_free_s) +
                                    subgraph.communication_s / rates.communication_rate;
                          communication_free_s = through;
                        }
                        through_s[static_cast<size_t>(launch.task)][static_cast<size_t>(launch.subgraph)] =
                            through;
                      });
}

ChosenLaunch choose_launch_order(std::span<const SubgraphDag> dags, const StreamRates& rates,
                                 std::span<const LaunchEdge> edges) {
  ChosenLaunch chosen;
  chosen.overlap.makespan_s = std::numeric_limits<double>::infinity();
  const auto consider = [&](const char* name, std::vector<Launch> order) {
    StageOverlap overlap = simulate_launches(dags, order, rates, edges);
    if (overlap.makespan_s < chosen.overlap.makespan_s) chosen = {std::move(order), name, std::move(overlap)};
  };
  if (has_one_order(dags)) {
    consider("priority", task_by_task(dags));
    return chosen;
  }
  consider("priority", launch_by_priority(dags, LatencyPreference::longest, edges));
  consider("priority, shortest first", launch_by_priority(dags, LatencyPreference::shortest, edges));
  consider("remaining path", launch_by_remaining_path(dags, rates, edges));
  consider("task by task", task_by_task(dags));
  return chosen;
}

}  // namespace cotune
