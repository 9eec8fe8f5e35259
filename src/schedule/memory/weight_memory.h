/// Memory of the frozen model.
#pragma once

#include <cstdint>
#include <span>

#include "model/config/model_config.h"
#include "schedule/memory/memory_facts.h"

namespace cotune {

/// Of an embedding in slices, what one holder asks another for at a time (engine/sharded_weights.h).
inline constexpr int64_t embedding_rows_at_once = 1024;

/// Bytes of the frozen model. packed: each product in panels of 32 columns, once per direction (bf16 and parts pad the
/// other side to 32, too); products whose sizes are no multiples of 32 as they are, once. Norms and biases in the
/// accumulation dtype. A tied embedding is read from the head. With process_stages: of the dearest one. With weight_copies: the slices of
/// the layers' products and of the embedding, all else, the largest form of a product twice, for those that are gathered, and what others
/// ask of the embedding at a time; at least the embedding beside its slice, from which it is cut.
/// positions: tokens of the longest row, for which there are rotary tables, one of the model's context at most: positions · head_dim values in
/// the accumulation dtype, of every part of layers in this process. 0: without.
int64_t predict_weight_bytes(const ModelConfig& config, const MemoryFacts& facts, int64_t positions = 0);

/// The positions of these jobs: their longest row, held-out ones included.
int64_t positions_of(std::span<const JobFootprint> jobs);

}  // namespace cotune
