#include "model/config/tensor_shard.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"

namespace cotune {
namespace {

ModelConfig model(int64_t heads, int64_t kv_heads, int64_t inner = 240) {
  ModelConfig config;
  config.hidden_size = 96;
  config.intermediate_size = inner;
  config.head_count = heads;
  config.kv_head_count = kv_heads;
  config.head_dim = 16;
  config.vocabulary_size = 250;
  return config;
}

using Counts = std::vector<int64_t>;

TEST(TensorShards, DivideHeadsAndInnerFeaturesAndFitTheKvHeads) {
  EXPECT_EQ(shard_counts(model(8, 4)), (Counts{1, 2, 4, 8}));
  EXPECT_EQ(shard_counts(model(9, 3)), (Counts{1, 3}));
  EXPECT_EQ(shard_counts(model(9, 3, 1536)), (Counts{1, 3}));
  EXPECT_EQ(shard_counts(model(14, 2, 4864)), (Counts{1, 2}));
  EXPECT_EQ(shard_counts(model(12, 4)), (Counts{1, 2, 4, 12})) << "3 ranks would cut a kv head, 6 share 4 of them unevenly";
  EXPECT_EQ(shard_counts(model(8, 4, 6)), (Counts{1, 2})) << "inner features";
  EXPECT_THROW(sharded_config(model(9, 3), 2), InternalError);
}

/// Every feature is somewhere, as often as ranks are said to have the same, and its heads' queries lie where its keys do.
TEST(TensorShards, CoverEveryProjection) {
  for (const auto& [config, count] : {std::pair(model(8, 4), 2), {model(8, 4), 4}, {model(8, 2), 4}, {model(8, 1), 4}, {model(9, 3), 3}}) {
    const ModelConfig own = sharded_config(config, count);
    for (const Projection projection : all_projections) {
      const bool outputs = divides_outputs(projection);
      std::vector<int64_t> ranks_of;
      for (int64_t index = 0; index < count; ++index) {
        const TensorShard shard{index, count};
        const FeatureRange cut = outputs ? shard_outputs(config, projection, shard) : shard_inputs(config, projection, shard);
        const FeatureRange whole = outputs ? shard_inputs(config, projection, shard) : shard_outputs(config, projection, shard);
        EXPECT_EQ(whole, (FeatureRange{0, config.hidden_size}));
        ranks_of.resize(std::max<size_t>(ranks_of.size(), static_cast<size_t>(cut.begin + cut.count)));
        for (int64_t i = 0; i < cut.count; ++i) ++ranks_of[static_cast<size_t>(cut.begin + i)];
      }
      EXPECT_EQ(ranks_of, std::vector(ranks_of.size(), ranks_with_same_outputs(config, projection, count)));
    }
    for (int64_t index = 0; index < count; ++index) {
      const FeatureRange queries = shard_outputs(config, Projection::q, {index, count}), keys = shard_outputs(config, Projection::k, {index, count});
      EXPECT_EQ(queries.count, own.query_size());
      EXPECT_EQ(keys.count, own.key_value_size());
      for (int64_t head = 0; head < own.head_count; ++head) {
        const int64_t query_head = queries.begin / config.head_dim + head;
        const int64_t kv_head = query_head / (config.head_count / config.kv_head_count);
        EXPECT_EQ(keys.begin / config.head_dim + head / (own.head_count / own.kv_head_count), kv_head);
      }
    }
  }
}

TEST(TensorShards, DivideAnyVocabulary) {
  int64_t next = 0;
  for (int64_t index = 0; index < 4; ++index) {
    const FeatureRange tokens = shard_vocabulary(model(8, 4), {index, 4});
    EXPECT_EQ(tokens.begin, next);
    EXPECT_NEAR(static_cast<double>(tokens.count), 62.5, 0.5);
    next += tokens.count;
  }
  EXPECT_EQ(next, 250);
  for (int64_t count = 1; count <= 12; ++count) {
    int64_t largest = 0;
    for (int64_t index = 0; index < count; ++index) largest = std::max(largest, shard_vocabulary(model(8, 4), {index, count}).count);
    EXPECT_EQ(largest_vocabulary_share(model(8, 4), count), largest) << count;
  }
}

}  // namespace
}  // namespace cotune
