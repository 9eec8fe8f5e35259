/// In which order a rank launches the subgraphs of the hybrid tasks of a bucket, so that one computes while
/// another communicates (MuxTune §3.4.2).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "schedule/stage/overlap.h"
#include "schedule/stage/subgraphs.h"

namespace cotune {

/// Task after task, subgraphs as they stand: no interleaving.
std::vector<Launch> task_by_task(std::span<const SubgraphDag> dags);

enum class LatencyPreference { longest, shortest };

/// MuxTune's Algorithm 1: of the subgraphs whose predecessors are launched, those of least depth; of these
/// the one with the longest compute; ties go to the lower task. `shortest` turns the second rule round.
/// edges: between launches of different tasks; they hold no cycle with the order of the tasks.
std::vector<Launch> launch_by_priority(std::span<const SubgraphDag> dags,
                                       LatencyPreference preference = LatencyPreference::longest,
                                       std::span<const LaunchEdge> edges = {});

/// Greedy by the streams' times: of what can start first (what is ready counts as equal) the subgraph with
/// the longest way to the end, its own communication included. Adapter gradients, which nobody waits for,
/// fill what is left.
std::vector<Launch> launch_by_remaining_path(std::span<const SubgraphDag> dags,
                                             const StreamRates& rates = {},
                                             std::span<const LaunchEdge> edges = {});

struct ChosenLaunch {
  std::vector<Launch> order;
  std::string name;      ///< `priority`, `priority, shortest first`, `remaining path` or `task by task`
  StageOverlap overlap;  ///< simulated
};

/// The shortest of these four, simulated; the first named among equals. Never longer than any of them.
/// edges: from an earlier task to a later one.
ChosenLaunch choose_launch_order(std::span<const SubgraphDag> dags, const StreamRates& rates = {},
                                 std::span<const LaunchEdge> edges = {});

}  // namespace cotune
