#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

namespace cotune {

/// Layers [begin, end); all of them unless it says otherwise.
struct LayerRange {
  int64_t begin = 0;
  int64_t end = std::numeric_limits<int64_t>::max();
  bool contains(int64_t layer) const { return begin <= layer && layer < end; }
};
inline bool contains(std::span<const LayerRange> ranges, int64_t layer) {
  return std::ranges::any_of(ranges, [&](const LayerRange& range) { return range.contains(layer); });
}

/// Where a parameter of a shard (AdapterSetup::shard) lies in the whole adapter's parameter of that name, and who has the same.
struct ShardPlace {
  int64_t dimension = -1;  ///< of the whole value that is cut; -1: every rank has all of it
  int64_t begin = 0;       ///< of the cut dimension
  int64_t whole_size = 0;  ///< of the cut dimension
  at::Tensor entries;      ///< int64: which values of the whole are here, where they do not follow one another; or undefined
  int64_t holders = 1;     ///< ranks with the same part, which follow one another; all of the group where nothing is cut
  bool is_summand = false; ///< its gradient is this rank's summand: the job's is the sum over the ranks that hold the part
};

/// One trainable tensor of one job with its gradient and optimizer state; all in the accumulation dtype (f32, or f64
/// under f64) and contiguous.
struct Parameter {
  std::string name;       ///< in the adapter's file, PEFT's names: `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`
  int64_t layer = 0;      ///< that it adapts
  at::Tensor value;
  at::Tensor gradient;    ///< of the job's loss over its whole batch; zeroed after every optimizer step
  at::Tensor first_moment, second_moment;  ///< AdamW; SGD uses first_moment as its momentum buffer, or neither
  double learning_rate_ratio = 1;          ///< LoRA+: of B
  bool decays = true;                      ///< weight decay applies
  bool transposed_in_file = false;         ///< the file holds valueᵀ
  ShardPlace place;
};

}  // namespace cotune
