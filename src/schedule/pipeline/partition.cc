#include "schedule/pipeline/partition.h"

#include <algorithm>

#include "base/error.h"
#include "base/never.h"

namespace cotune {

std::vector<int64_t> partition_stages(std::span<const double> costs, int64_t stage_count) {
  const auto item_count = static_cast<int64_t>(costs.size());
  COTUNE_CHECK(stage_count >= 1 && item_count >= stage_count, "{} items on {} stages", item_count,
               stage_count);
  COTUNE_CHECK(std::all_of(costs.begin(), costs.end(), [](double cost) { return cost >= 0; }),
               "a negative cost");
  std::vector<double> until{0};  // cost of the first n items
  for (const double cost : costs) until.push_back(until.back() + cost);
  const auto sum = [&](int64_t first, int64_t end) {
    return until[static_cast<size_t>(end)] - until[static_cast<size_t>(first)];
  };
  // best[s][i]: the least maximum of items i … on s+1 stages.
  std::vector<std::vector<double>> best(static_cast<size_t>(stage_count),
                                        std::vector<double>(static_cast<size_t>(item_count) + 1, never));
  for (int64_t i = 0; i < item_count; ++i) best[0][static_cast<size_t>(i)] = sum(i, item_count);
  for (int64_t s = 1; s < stage_count; ++s) {
    for (int64_t i = 0; i < item_count; ++i) {
      double& least = best[static_cast<size_t>(s)][static_cast<size_t>(i)];
      for (int64_t end = i + 1; end < item_count; ++end) {
        least = std::min(least,
                         std::max(sum(i, end), best[static_cast<size_t>(s - 1)][static_cast<size_t>(end)]));
      }
    }
  }
  const double bound = best.back().front();
  std::vector<int64_t> starts{0};
  for (int64_t s = stage_count - 1; s > 0; --s) {
    int64_t end = item_count - s;
    while (sum(starts.back(), end) > bound ||
           best[static_cast<size_t>(s - 1)][static_cast<size_t>(end)] > bound)
      --end;
    starts.push_back(end);
  }
  starts.push_back(item_count);
  return starts;
}

}  // namespace cotune
