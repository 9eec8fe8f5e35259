#include "schedule/pipeline/interleaved.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "schedule/pipeline/alternating_order.h"

namespace cotune {
namespace {

/// First units of the groups that go through a rank's stages together: at most `rank_count` units of one
/// batch, or, under continuous, of any batches as long as none needs the optimizer step of another.
std::vector<int32_t> group_starts(const PipelineWork& work, BatchBoundary boundary) {
  const std::vector<PipelineUnit> units = units_of(work);
  const std::vector<int32_t> batches = batch_starts(work);
  std::vector<int32_t> starts;
  std::map<int32_t, int64_t> first_step;  // of each job in the group
  for (int32_t u = 0; u < static_cast<int32_t>(units.size()); ++u) {
    const PipelineUnit& unit = units[static_cast<size_t>(u)];
    bool opens = starts.empty() || u - starts.back() == work.rank_count ||
                 (boundary == BatchBoundary::flush && batches[static_cast<size_t>(u)] == u);
    for (int32_t m = unit.first; m < unit.first + unit.count; ++m) {
      for (const JobStep& step : work.microbatches[static_cast<size_t>(m)].jobs) {
        const auto found = first_step.find(step.job);
        opens = opens || (found != first_step.end() && found->second != step.step);
      }
    }
    if (opens) {
      starts.push_back(u);
      first_step.clear();
    }
    for (int32_t m = unit.first; m < unit.first + unit.count; ++m) {
      for (const JobStep& step : work.microbatches[static_cast<size_t>(m)].jobs)
        first_step[step.job] = step.step;
    }
  }
  return starts;
}

}  // namespace

ComputeOrder interleaved_one_f_one_b(const PipelineWork& work, BatchBoundary boundary) {
  const int32_t ranks = work.rank_count;
  const int32_t chunks = work.stage_count() / ranks;
  COTUNE_CHECK(work.stage_rank == interleaved_stages(ranks, chunks), "stage k must be on rank k mod {}",
               ranks);
  const auto unit_count = static_cast<int32_t>(units_of(work).size());
  const std::vector<int32_t> starts = group_starts(work, boundary);
  std::vector<AlternatingRank> plans(static_cast<size_t>(ranks));
  for (int32_t r = 0; r < ranks; ++r) {
    AlternatingRank& rank = plans[static_cast<size_t>(r)];
    rank.ahead = chunks == 1 ? ranks - 1 - r : 2 * (ranks - 1 - r) + (chunks - 1) * ranks;
    for (size_t g = 0; g < starts.size(); ++g) {
      const int32_t end = g + 1 < starts.size() ? starts[g + 1] : unit_count;
      for (int32_t chunk = 0; chunk < chunks; ++chunk) {
        for (int32_t u = starts[g]; u < end; ++u) {
          rank.forwards.push_back({u, chunk * ranks + r});
          rank.backwards.push_back({u, (chunks - 1 - chunk) * ranks + r});
        }
      }
    }
  }
  const ComputeGraph graph(work, {});
  for (int64_t more = 0;; ++more) {
    COTUNE_CHECK(more <= static_cast<int64_t>(unit_count) * chunks,
                 "no number of forwards ahead frees this pipeline");
    ComputeOrder order;
    for (AlternatingRank rank : plans) {
      rank.ahead += more;
      order.push_back(alternate(work, rank, boundary));
    }
    if (graph.times(order)) return order;
  }
}

}  // namespace cotune
