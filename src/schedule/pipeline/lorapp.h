/// LoRAPP (mLoRA §3.2): the microbatches of other adapters fill the pipeline.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/pipeline/list_scheduling.h"

namespace cotune {

/// Any job whose last step is through may launch, the one that waits longest first; a stage takes a ready
/// backward before a forward, each class in order of arrival. A job has one step under way, its forwards at
/// the optimizer step's own parameters: no weights are stale. backward_first = false is the paper's GPipe
/// mode. `kept_bytes_limit`: as in ListPolicy; it throws what that throws.
ComputeOrder lorapp(const PipelineWork& work, const PipelineCluster& cluster = {}, bool backward_first = true,
                    const std::vector<int64_t>& kept_bytes_limit = {});
/// The same with the graph of the work, for more calls.
ComputeOrder lorapp(const PipelineWork& work, const ComputeGraph& graph, bool backward_first,
                    const std::vector<int64_t>& kept_bytes_limit);

/// Bubble ratio of a steady region, D stages, L adapters, N microbatches per step (§3.2.2):
/// max((D-1+N-L·N)/(D+N-1), 0). With L = 1 it is that of GPipe and 1F1B.
double lorapp_bubble_ratio(int64_t stages, int64_t adapters, int64_t microbatches);

/// The fewest microbatches per step that leave no bubble: ⌈(D-1)/(L-1)⌉, at most `most`; `most` for one
/// adapter, which never reaches it; 1 from L = D on.
int64_t lorapp_microbatches(int64_t stages, int64_t adapters, int64_t most);

/// Throughput over that of one adapter under GPipe with equal N (§3.2.2): (1-ν)/(1-μ), which is L before the
/// bubble is gone and (D+N-1)/N after.
double lorapp_speedup(int64_t stages, int64_t adapters, int64_t microbatches);

}  // namespace cotune
