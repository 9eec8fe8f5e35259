/// Inside the memory model: what its parts say of a matrix, and of the part of the model that is in this process.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "schedule/memory/memory_facts.h"
#include "schedule/operator_cost.h"

namespace cotune {

constexpr int64_t row_grid = 64;  ///< the memory model rounds microbatches up to multiples of it; nothing else does

inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
inline int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }
inline int64_t accumulation_size(const MemoryFacts& facts) { return accumulation_bytes(facts.element_size); }

/// A matrix [k, n] in panels of 32 columns; bf16 pads k, and so do parts.
inline int64_t panel_bytes(int64_t k, int64_t n, int64_t element_size, int parts) {
  if (parts > 0) return round_up(k, 32) * round_up(n, 32) * 2 * parts;
  return (element_size == 2 ? round_up(k, 32) : k) * round_up(n, 32) * element_size;
}

/// Of what forward or backward reads, the larger; and of both.
struct FrozenBytes {
  int64_t form = 0;
  int64_t all = 0;
};

inline bool fits_panels(int64_t in, int64_t out) { return in % 32 == 0 && out % 32 == 0; }

inline FrozenBytes frozen_bytes(int64_t in, int64_t out, const MemoryFacts& facts) {
  const bool packed = facts.packed && facts.element_size != 8 && fits_panels(in, out);
  if (!packed) return {in * out * facts.element_size, in * out * facts.element_size};
  const int64_t forward = panel_bytes(in, out, facts.element_size, facts.parts), backward = panel_bytes(out, in, facts.element_size, facts.parts);
  return {std::max(forward, backward), forward + backward};
}

/// Heads that our attention takes.
inline bool attends_with_kernels(const ModelConfig& config, const MemoryFacts& facts) {
  return facts.packed && facts.element_size != 8 && config.head_dim % 16 == 0 && config.head_dim <= 128;
}

/// Of one thread (MemoryFacts::attention_scratch); 0 where ATen computes.
inline int64_t attention_scratch_bytes(const ModelConfig& config, int64_t row_tokens, Direction direction, const MemoryFacts& facts) {
  const bool has_any = facts.attention_scratch != nullptr && attends_with_kernels(config, facts);
  return has_any ? facts.attention_scratch(config, row_tokens, direction) : 0;
}

inline bool factor_is_packed(int64_t columns, const MemoryFacts& facts) {
  return facts.packed && facts.element_size != 8 && columns % 32 == 0;
}

/// The stages of which one is a process's, if it has not the whole model.
inline std::vector<StageShape> stages_here(const ModelConfig& config, const MemoryFacts& facts) {
  if (!facts.process_stages.empty()) return facts.process_stages;
  StageShape whole = whole_model(config);
  whole.tensor_parallel = facts.tensor_parallel;
  whole.is_sequence_parallel = facts.is_sequence_parallel;
  return {whole};
}

/// Of the ranks that divide a layer, those in this process.
inline int64_t parts_here(const MemoryFacts& facts) { return facts.process_stages.empty() ? facts.tensor_parallel : 1; }

/// The most layers of them.
inline int64_t layers_here(const ModelConfig& config, const MemoryFacts& facts) {
  int64_t layers = 0;
  for (const StageShape& stage : stages_here(config, facts)) layers = std::max(layers, stage.last_layer - stage.first_layer);
  return layers;
}

}  // namespace cotune
