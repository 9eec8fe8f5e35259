#include "model/config/tensor_shard.h"

#include <algorithm>

#include "base/error.h"

namespace cotune {
namespace {

FeatureRange part(int64_t size, const TensorShard& shard) {
  const int64_t begin = size * shard.index / shard.count;
  return {begin, size * (shard.index + 1) / shard.count - begin};
}

FeatureRange kv_features(const ModelConfig& config, const TensorShard& shard) {
  const int64_t heads = std::max<int64_t>(1, config.kv_head_count / shard.count);
  return {config.kv_head_count * shard.index / shard.count * config.head_dim, heads * config.head_dim};
}

}  // namespace

bool divides_outputs(Projection projection) {
  return projection != Projection::o && projection != Projection::down;
}

FeatureRange shard_inputs(const ModelConfig& config, Projection projection, const TensorShard& shard) {
  switch (projection) {
    case Projection::o:
      return part(config.query_size(), shard);
    case Projection::down:
      return part(config.intermediate_size, shard);
    default:
      return {0, config.hidden_size};
  }
}

FeatureRange shard_outputs(const ModelConfig& config, Projection projection, const TensorShard& shard) {
  switch (projection) {
    case Projection::q:
      return part(config.query_size(), shard);
    case Projection::k:
    case Projection::v:
      return kv_features(config, shard);
    case Projection::gate:
    case Projection::up:
      return part(config.intermediate_size, shard);
    case Projection::o:
    case Projection::down:
      return {0, config.hidden_size};
  }
  return {};
}

ProjectionSize projection_size(const ModelConfig& config, Projection projection, int64_t count) {
  const TensorShard first{.index = 0, .count = count};
  return {shard_inputs(config, projection, first).count, shard_outputs(config, projection, first).count};
}

int64_t ranks_with_same_outputs(const ModelConfig& config, Projection projection, int64_t count) {
  const bool is_kv = projection == Projection::k || projection == Projection::v;
  return is_kv ? std::max<int64_t>(1, count / config.kv_head_count) : 1;
}

FeatureRange shard_vocabulary(const ModelConfig& config, const TensorShard& shard) {
  return part(config.vocabulary_size, shard);
}

int64_t largest_vocabulary_share(const ModelConfig& config, int64_t count) { return (config.vocabulary_size + count - 1) / count; }

ModelConfig sharded_config(const ModelConfig& config, int64_t count) {
  COTUNE_CHECK(can_be_sharded(config, count), "{} ranks for {} heads and {} kv heads", count,
               config.head_count, config.kv_head_count);
  ModelConfig shard = config;
  shard.head_count /= count;
  shard.kv_head_count = std::max<int64_t>(1, config.kv_head_count / count);
  shard.intermediate_size /= count;
  return shard;
}

bool can_be_sharded(const ModelConfig& config, int64_t count) {
  return count >= 1 && config.head_count % count == 0 && config.intermediate_size % count == 0 &&
         (config.kv_head_count % count == 0 || count % config.kv_head_count == 0);
}

std::vector<int64_t> shard_counts(const ModelConfig& config) {
  std::vector<int64_t> counts;
  for (int64_t count = 1; count <= config.head_count; ++count) {
    if (can_be_sharded(config, count)) counts.push_back(count);
  }
  return counts;
}

}  // namespace cotune
