/// GPipe (Huang et al. 2019): all forwards of a batch, then all its backwards.
#pragma once

#include "schedule/pipeline/compute_graph.h"

namespace cotune {

/// Batch after batch: the adjacent microbatches of one hybrid task and round go forward on every stage, then
/// backward in the same order (chains in reverse); a rank begins the next batch when its part of this one is
/// through. With equal stages and no transfer time the bubble ratio is (p-1)/(m+p-1), p stages and m
/// microbatches.
ComputeOrder gpipe(const PipelineWork& work);

}  // namespace cotune
