/// How a tensor-parallel group divides a layer (Shoeybi et al. 2019, Megatron-LM §3): each of its `count`
/// ranks has a share of the heads and of the feed-forward block's inner features.
#pragma once

#include <cstdint>
#include <vector>

#include "jobs/projection.h"
#include "model/config/model_config.h"

namespace cotune {

/// One rank's place in its tensor-parallel group.
struct TensorShard {
  int64_t index = 0;
  int64_t count = 1;
  bool is_sequence_parallel = false;  ///< sequence parallelism: between products each rank has some of the tokens (schedule/sequence_parallel.h)
  bool is_whole() const { return count == 1; }
  bool operator==(const TensorShard&) const = default;
};

/// Features [begin, begin + count) of a whole tensor.
struct FeatureRange {
  int64_t begin = 0;
  int64_t count = 0;
  bool operator==(const FeatureRange&) const = default;
};

/// Which features of a projection's input or output a rank has. q, k, v, gate and up divide their outputs, o
/// and down their inputs; the other side is whole. Where the group has more ranks than the model has kv
/// heads, several ranks have the same one.
FeatureRange shard_inputs(const ModelConfig& config, Projection projection, const TensorShard& shard);
FeatureRange shard_outputs(const ModelConfig& config, Projection projection, const TensorShard& shard);
/// q, k, v, gate and up.
bool divides_outputs(Projection projection);

/// The widths of a projection's input and output.
struct ProjectionSize {
  int64_t in = 0;
  int64_t out = 0;
};
/// As the first of `count` ranks has it. Of a configuration that is of a rank's part (sharded_config), count is 1.
ProjectionSize projection_size(const ModelConfig& config, Projection projection, int64_t count = 1);

/// Ranks of the group that have the same outputs of this projection: 1, or those that share a kv head.
int64_t ranks_with_same_outputs(const ModelConfig& config, Projection projection, int64_t count);

/// Rows of the embedding and of the head that a rank has: vocabularies need not divide evenly.
FeatureRange shard_vocabulary(const ModelConfig& config, const TensorShard& shard);
/// As many as the rank of `count` has that has the most.
int64_t largest_vocabulary_share(const ModelConfig& config, int64_t count);

/// The layers' sizes as one rank of `count` has them: heads, kv heads (at least one) and inner features.
/// Everything else, the vocabulary too, is the whole model's. Throws InternalError for a degree that does not
/// divide the model.
ModelConfig sharded_config(const ModelConfig& config, int64_t count);

/// Whether a group of `count` can divide the model: it divides the heads and the inner features, and is a
/// divisor or a multiple of the kv heads.
bool can_be_sharded(const ModelConfig& config, int64_t count);
/// All such counts, ascending from 1.
std::vector<int64_t> shard_counts(const ModelConfig& config);

}  // namespace cotune
