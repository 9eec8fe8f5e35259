/// Activations made again from the inputs of the layers, each layer's just before its backward: less memory for more time.
/// What the engine does under PackingPolicy::recompute, as costs.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/operators.h"

namespace cotune {

/// The part of a forward list that runs again: all that keeps something, without the last product of a layer where no
/// adapter needs it.
std::vector<Operator> recomputed_operators(const std::vector<Operator>& forward);

/// Bytes of one microbatch on a stage.
struct RecomputedBytes {
  int64_t kept = 0;   ///< until its backward: inputs of the layers that keep something, and of the head
  int64_t layer = 0;  ///< during it: what the largest layer keeps for its backward
  bool operator==(const RecomputedBytes&) const = default;
};
RecomputedBytes recomputed_bytes(const ModelConfig& model, const StageShape& stage, const std::vector<Operator>& forward,
                                 const MicrobatchCounts& counts, int64_t element_size);

/// Of these bytes what one forward operator keeps: the layer's input with its first norm, the head's input with the last
/// product.
int64_t kept_input_bytes(const ModelConfig& model, const StageShape& stage, const Operator& op,
                         const MicrobatchCounts& counts, int64_t element_size);

}  // namespace cotune
