#include "kernels/attention_plan.h"

#include <gtest/gtest.h>

#include <map>

namespace cotune::kernels {
namespace {

const AttentionShape shape = {9, 3, 64, 0.125f};

AttentionSegment segment(int64_t position, int64_t count) { return {0, count, position, nullptr, nullptr, 0}; }

TEST(AttentionPlan, ForwardCoversEveryQueryBlockOnce) {
  const std::vector<AttentionSegment> segments = {segment(0, 700), segment(0, 1), segment(640, 333), segment(0, 0)};
  for (const int64_t threads : {1, 2, 64}) {
    std::map<std::array<int64_t, 3>, int> times;
    for (const auto& task : plan_attention_forward(shape, segments, threads)) {
      for (int64_t b = task.query_blocks.begin; b < task.query_blocks.end; ++b) {
        ++times[{task.segment, task.kv_head, b}];
        EXPECT_GE(task.key_blocks.end, b / 2 + 1);
      }
    }
    EXPECT_EQ(times.size(), 3u * (22 + 1 + 11));
    for (const auto& [block, count] : times) EXPECT_EQ(count, 1);
  }
}

TEST(AttentionPlan, BackwardCoversQueriesAndKeysOnce) {
  const std::vector<AttentionSegment> segments = {segment(0, 700), segment(0, 1), segment(640, 333)};
  for (const int64_t threads : {1, 2, 5, 64}) {
    std::map<std::array<int64_t, 3>, int> queries, keys;
    for (const auto& task : plan_attention_backward(shape, segments, threads)) {
      for (int64_t b = task.query_blocks.begin; task.query_gradient && b < task.query_blocks.end; ++b) {
        ++queries[{task.segment, task.kv_head, b}];
        EXPECT_GE(task.key_blocks.end, b / 2 + 1);
      }
      for (int64_t b = task.key_blocks.begin; task.kv_gradient && b < task.key_blocks.end; ++b) {
        ++keys[{task.segment, task.kv_head, b}];
        EXPECT_EQ(task.query_blocks.end, query_blocks_of(segments[task.segment]).end);
        EXPECT_LE(task.query_blocks.begin, std::max(query_blocks_of(segments[task.segment]).begin, 2 * b));
      }
    }
    EXPECT_EQ(queries.size(), 3u * (22 + 1 + 11));
    EXPECT_EQ(keys.size(), 3u * (11 + 1 + 16));
    for (const auto& [block, count] : queries) EXPECT_EQ(count, 1);
    for (const auto& [block, count] : keys) EXPECT_EQ(count, 1);
  }
}

TEST(AttentionPlan, OneLongRowIsEnoughForManyThreads) {
  const std::vector<AttentionSegment> segments = {segment(0, 8192)};
  EXPECT_GE(plan_attention_forward(shape, segments, 64).size(), 64u);
  const auto backward = plan_attention_backward(shape, segments, 64);
  int64_t total = 0;
  for (const auto& task : backward) total += task.cost;
  EXPECT_LE(backward.front().cost, total / 64);
}

TEST(AttentionPlan, ManyRowsAreNotCut) {
  const std::vector<AttentionSegment> segments(16, segment(0, 256));
  EXPECT_EQ(plan_attention_backward(shape, segments, 2).size(), 48u);
}

TEST(AttentionPlan, LongestFirst) {
  const std::vector<AttentionSegment> segments = {segment(0, 10), segment(0, 400), segment(0, 90)};
  const auto tasks = plan_attention_forward(shape, segments, 1);
  for (size_t i = 1; i < tasks.size(); ++i) EXPECT_LE(tasks[i].cost, tasks[i - 1].cost);
}

}  // namespace
}  // namespace cotune::kernels
