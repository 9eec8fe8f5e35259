/// Model shapes for tests of lists, costs and memory.
#pragma once

#include "schedule/operators.h"

namespace cotune {

inline ModelConfig small_model() {
  return {.family = "llama",
          .layer_count = 3,
          .hidden_size = 64,
          .intermediate_size = 96,
          .head_count = 4,
          .kv_head_count = 2,
          .head_dim = 16,
          .vocabulary_size = 128,
          .context_length = 4096,
          .tied_embeddings = true};
}

inline ModelConfig smollm2_135m() {
  return {.family = "llama",
          .layer_count = 30,
          .hidden_size = 576,
          .intermediate_size = 1536,
          .head_count = 9,
          .kv_head_count = 3,
          .head_dim = 64,
          .vocabulary_size = 49152,
          .context_length = 8192,
          .tied_embeddings = true};
}

inline std::vector<AdapterShape> lora_everywhere(const ModelConfig& config, int32_t job, int64_t rank) {
  std::vector<AdapterShape> adapters;
  for (int64_t layer = 0; layer < config.layer_count; ++layer) {
    for (Projection projection : all_projections) {
      adapters.push_back({.job = job, .layer = layer, .projection = projection, .width = rank});
    }
  }
  return adapters;
}

}  // namespace cotune
