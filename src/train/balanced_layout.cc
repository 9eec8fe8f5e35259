#include "train/balanced_layout.h"

#include <limits>

#include "plan/cost/replica_stages.h"
#include "plan/cost/stage_prices.h"
#include "train/thread_link.h"

namespace cotune {

PipelineLayout balanced_layout(const ModelConfig& model, const std::vector<JobShape>& jobs, const DeviceCosts& costs,
                               const PackingPolicy& policy, const ReplicaDegrees& degrees) {
  StageMachine machine = costs.machine;
  machine.recompute = policy.recompute;
  machine.link = spec_of(thread_link);
  StagePrices prices(model, jobs, machine);
  return {.stages = balanced_stages(model, jobs, degrees.stages(), degrees.tensor, policy.token_budget, prices,
                                    std::numeric_limits<int64_t>::max(), {}, degrees.is_sequence_parallel),
          .stage_rank = interleaved_stages(static_cast<int32_t>(degrees.pipeline), static_cast<int32_t>(degrees.stages_per_rank)),
          .shards_weights = degrees.shards_weights};
}

std::vector<PipelineLayout> balanced_layouts(const ModelConfig& model, const std::vector<JobShape>& jobs, const DeviceCosts& costs,
                                             const PackingPolicy& policy, const Parallel& parallel) {
  std::vector<PipelineLayout> layouts;
  for (const ReplicaDegrees& replica : parallel.replicas) layouts.push_back(balanced_layout(model, jobs, costs, policy, replica));
  return layouts;
}

}  // namespace cotune
