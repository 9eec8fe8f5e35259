/// The order a pipeline takes where nobody asks for another: the best of several by predicted makespan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/pipeline/list_scheduling.h"

namespace cotune {

/// An order that was tried.
struct TriedOrder {
  std::string name;
  double makespan_s = 0;
  std::vector<int64_t> peak_kept_bytes;  ///< per rank
  bool fits = true;                      ///< within the limit
};

struct ChosenOrder {
  ComputeOrder order;
  std::string name;  ///< of tried
  double makespan_s = 0;
  std::vector<TriedOrder> tried;  ///< in the order they were tried, the chosen one among them
};

inline constexpr int64_t most_task_exchanges = 64;

/// Tries LoRAPP backward-first and forward-first, MuxTune's template, tasks in turn as they stand, and
/// continuous 1F1B (with one stage per rank); then exchanges neighbours in the launch order of hybrid tasks,
/// under the better of strict and free launching, as long as that shortens it. Takes the shortest; among
/// those within a thousandth the one with the lowest peak of kept bytes on any rank. The effort is bounded by
/// the size of the work, in evaluations: equal work gives equal orders. `kept_bytes_limit`: as in ListPolicy;
/// it throws what that throws. `most_exchanges`: of neighbours, at most. Against the exact optimum on small cases: docs/schedules.md.
ChosenOrder choose_order(const PipelineWork& work, const PipelineCluster& cluster = {},
                         const std::vector<int64_t>& kept_bytes_limit = {},
                         int64_t most_exchanges = most_task_exchanges);

/// Peak of kept bytes per rank that an order has, whatever the times.
std::vector<int64_t> peak_kept_bytes(const PipelineWork& work, const ComputeOrder& order);

}  // namespace cotune
