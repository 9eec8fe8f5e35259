/// Which ranks spread their frozen weights over them: those of equal place in replicas of one layout that says so.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedule/pipeline/rank_plan.h"

namespace cotune {

/// The replicas that share weights with `replica`, itself among them, ascending.
std::vector<size_t> replicas_with_weights_of(std::span<const PipelineLayout> layouts, size_t replica);

/// The ranks that share weights with `rank`, itself among them, ascending. Every rank is of one such set.
std::vector<int32_t> ranks_with_weights_of(std::span<const PipelineLayout> layouts, int32_t rank);

/// Whether there is a set of several.
bool some_share_weights(std::span<const PipelineLayout> layouts);

}  // namespace cotune
