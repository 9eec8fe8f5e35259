#include "schedule/pipeline/alternating_order.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace cotune {

std::vector<int32_t> batch_starts(const PipelineWork& work) {
  const std::vector<PipelineUnit> units = units_of(work);
  std::vector<int32_t> starts;
  for (size_t u = 0; u < units.size(); ++u) {
    const auto batch = [&](size_t unit) {
      const PipelineMicrobatch& microbatch = work.microbatches[static_cast<size_t>(units[unit].first)];
      return std::pair(microbatch.hybrid_task, microbatch.round);
    };
    starts.push_back(u > 0 && batch(u) == batch(u - 1) ? starts.back() : static_cast<int32_t>(u));
  }
  return starts;
}

namespace {

/// For every unit the last unit whose backward must come before its forward; -1: none. On every stage, also
/// where the job has no adapter: all ranks then follow one sequence, and none runs ahead into a cycle.
std::vector<int32_t> barriers_of(const PipelineWork& work, const std::vector<PipelineUnit>& units,
                                 BatchBoundary boundary) {
  const std::vector<int32_t> starts = batch_starts(work);
  std::map<JobStep, int32_t> last_of;
  std::vector<int32_t> barriers;
  for (size_t u = 0; u < units.size(); ++u) {
    int32_t barrier = boundary == BatchBoundary::flush ? starts[u] - 1 : -1;
    for (int32_t m = units[u].first; m < units[u].first + units[u].count; ++m) {
      for (const JobStep& step : work.microbatches[static_cast<size_t>(m)].jobs) {
        const auto before = last_of.find({step.job, step.step - 1});
        if (before != last_of.end()) barrier = std::max(barrier, before->second);
        last_of[step] = static_cast<int32_t>(u);
      }
    }
    barriers.push_back(barrier);
  }
  return barriers;
}

}  // namespace

std::vector<Compute> alternate(const PipelineWork& work, const AlternatingRank& rank,
                               BatchBoundary boundary) {
  COTUNE_CHECK(rank.forwards.size() == rank.backwards.size(), "{} forwards, {} backwards",
               rank.forwards.size(), rank.backwards.size());
  const std::vector<PipelineUnit> units = units_of(work);
  const std::vector<int32_t> barriers = barriers_of(work, units, boundary);
  std::map<UnitOnStage, size_t> backward_place;
  for (size_t i = 0; i < rank.backwards.size(); ++i) backward_place[rank.backwards[i]] = i;

  std::vector<Compute> order;
  size_t forward = 0;
  size_t backward = 0;
  while (backward < rank.backwards.size()) {
    const bool can_go_forward = forward < rank.forwards.size() && [&] {
      const int32_t before = barriers[static_cast<size_t>(rank.forwards[forward].unit)];
      return static_cast<int64_t>(forward - backward) <= rank.ahead &&
             (before < 0 || backward_place.at({before, rank.forwards[forward].stage}) < backward);
    }();
    const UnitOnStage& at = can_go_forward ? rank.forwards[forward++] : rank.backwards[backward++];
    const PipelineUnit& unit = units[static_cast<size_t>(at.unit)];
    for (int32_t i = 0; i < unit.count; ++i) {
      const int32_t m = can_go_forward ? unit.first + unit.count - 1 - i : unit.first + i;
      if (can_go_forward || lowest_stage(work, work.microbatches[static_cast<size_t>(m)]) <= at.stage) {
        order.push_back({m, at.stage, !can_go_forward});
      }
    }
  }
  return order;
}

}  // namespace cotune
