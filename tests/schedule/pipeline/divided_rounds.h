/// Step plans on the stages of a pipeline, for tests of what ranks are planned to do.
#pragma once

#include "schedule/pipeline/rank_plan.h"

namespace cotune {

/// Layers split evenly; degree: ranks that divide those of a stage.
inline PipelineLayout pipeline(int32_t stages, int64_t layer_count, int64_t degree = 1) {
  PipelineLayout layout{.stages = {}, .stage_rank = one_stage_per_rank(stages)};
  for (int64_t s = 0; s < stages; ++s) {
    layout.stages.push_back({s * layer_count / stages, (s + 1) * layer_count / stages, s == 0, s + 1 == stages, degree});
  }
  return layout;
}

inline StageCost by_tokens(const StepPlan& plan, size_t microbatch, size_t) {
  const auto tokens = static_cast<double>(plan.microbatches[microbatch].token_count());
  return {tokens, 2 * tokens, static_cast<int64_t>(tokens)};
}

/// Four subgraphs each way, the first three of which end with an all-reduce, each faster than the one before it.
inline StageGraphs some_graphs(const StepPlan& plan, size_t microbatch, size_t) {
  SubgraphDag dag;
  for (int32_t i = 0; i < 4; ++i) {
    Subgraph& next = dag.emplace_back();
    if (i > 0) next.predecessors = {i - 1};
    next.depth = i;
    next.compute_s = static_cast<double>(plan.microbatches[microbatch].token_count());
    next.communication_s = 0.4 * (3 - i) * next.compute_s;
  }
  return {dag, dag};
}

}  // namespace cotune
