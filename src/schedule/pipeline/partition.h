/// Which layers a stage holds: contiguous runs with the most expensive stage as cheap as it can be (mLoRA §3.2.1).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cotune {

/// Cuts items (embedding, layers, head, in order) into `stage_count` runs of at least one item each; minimises the
/// largest sum of costs, then, of the cuts that reach it, makes earlier stages as long as they may be. Returns the first
/// item of every stage and, at the end, the item count. O(stages · items²). Throws InternalError for fewer items than
/// stages, no stages, or a negative cost.
std::vector<int64_t> partition_stages(std::span<const double> costs, int64_t stage_count);

}  // namespace cotune
