#include "schedule/pipeline/lorapp.h"

#include <algorithm>

#include "base/error.h"

namespace cotune {

ComputeOrder lorapp(const PipelineWork& work, const PipelineCluster& cluster, bool backward_first,
                    const std::vector<int64_t>& kept_bytes_limit) {
  return lorapp(work, ComputeGraph(work, cluster), backward_first, kept_bytes_limit);
}

ComputeOrder lorapp(const PipelineWork& work, const ComputeGraph& graph, bool backward_first,
                    const std::vector<int64_t>& kept_bytes_limit) {
  return list_schedule(work, graph, {.backward_first = backward_first, .kept_bytes_limit = kept_bytes_limit});
}

double lorapp_bubble_ratio(int64_t stages, int64_t adapters, int64_t microbatches) {
  const auto idle = static_cast<double>(stages - 1 + microbatches - adapters * microbatches);
  return std::max(idle / static_cast<double>(stages + microbatches - 1), 0.0);
}

int64_t lorapp_microbatches(int64_t stages, int64_t adapters, int64_t most) {
  COTUNE_CHECK(stages >= 1 && adapters >= 1 && most >= 1, "{} stages, {} adapters, at most {} microbatches",
               stages, adapters, most);
  if (adapters >= stages) return 1;
  if (adapters == 1) return most;
  return std::min((stages - 1 + adapters - 2) / (adapters - 1), most);
}

double lorapp_speedup(int64_t stages, int64_t adapters, int64_t microbatches) {
  return (1 - lorapp_bubble_ratio(stages, adapters, microbatches)) /
         (1 - lorapp_bubble_ratio(stages, 1, microbatches));
}

}  // namespace cotune
