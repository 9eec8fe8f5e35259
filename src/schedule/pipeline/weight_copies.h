/// Which ranks spread their frozen weights over them: those of equal place in replicas of one layout that says so.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "schedule/pipeline/rank_plan.h"

namespace cotune {

/// The replicas that share weights with `replica`, itself among them, ascending.
std::vector<size_t> replicas_with_weights_of(std::span<const PipelineLayout> layouts, size_t replica);

/// The ranks that share weights with `rank`, itself among them, ascending. Every rank is of one such set.
std::vector<int32_t> ranks_with_weights_of(std::span<const PipelineLayout> layouts, int32_t rank);

/// Two ranks of one set whose weights have unlike forms, as processors with other kernels keep them. forms: of each rank.
std::optional<std::pair<int32_t, int32_t>> ranks_of_unlike_forms(std::span<const PipelineLayout> layouts, std::span<const std::string> forms);

/// Whether there is a set of several.
bool some_share_weights(std::span<const PipelineLayout> layouts);

}  // namespace cotune
