#include "train/row_dispatch.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/random.h"

namespace cotune {
namespace {

/// A replica whose microbatches of n rows of s tokens take n · s tokens' time over its speed, and a little more.
Configuration replica(int64_t longest, double speed) {
  return {.tensor_parallel = 1, .pipeline_stages = 1, .chunk_tokens = longest, .chunk_seconds = [speed](int64_t rows, int64_t tokens) {
            return (static_cast<double>(rows * tokens) + 50) / speed;
          }};
}

/// The same with chunks of so many tokens, which cut longer rows.
Configuration cutting_replica(int64_t chunk, int64_t longest, double speed) {
  Configuration cutting = replica(chunk, speed);
  cutting.longest_row = longest;
  return cutting;
}

std::vector<BatchShape> random_batches(uint64_t key, int64_t longest) {
  std::vector<BatchShape> batches;
  for (int32_t job = 0; job < 3; ++job) {
    BatchShape& batch = batches.emplace_back();
    batch.job = 2 * job;
    batch.step = 4;
    const uint64_t rows = 1 + uniform_below(key, static_cast<uint64_t>(100 * job), 12);
    for (uint64_t row = 0; row < rows; ++row) {
      const uint64_t bound = uniform_below(key, 1000 + row, 4) == 0 ? static_cast<uint64_t>(longest) : 90;
      batch.row_lengths.push_back(1 + static_cast<int64_t>(uniform_below(key, static_cast<uint64_t>(100 * job) + row + 1, bound)));
    }
  }
  return batches;
}

std::vector<double> tokens_of(const DealtRound& round, size_t replicas) {
  std::vector<double> tokens(replicas, 0);
  for (size_t b = 0; b < round.batches.size(); ++b) {
    for (size_t row = 0; row < round.replica_of[b].size(); ++row) {
      tokens[static_cast<size_t>(round.replica_of[b][row])] += static_cast<double>(round.batches[b].row_lengths[row]);
    }
  }
  return tokens;
}

TEST(RowDispatcher, SendsNoRowWhereItIsTooLongAndDealsAllAlikeEachTime) {
  const std::vector<Configuration> replicas{replica(100, 1), cutting_replica(100, 300, 1), cutting_replica(400, 1000, 2)};
  for (const DispatchRule rule : {DispatchRule::balanced, DispatchRule::greedy, DispatchRule::even}) {
    for (uint64_t key = 0; key < 60; ++key) {
      const std::vector<int64_t> borders = key % 2 == 0 ? std::vector<int64_t>() : std::vector<int64_t>{64, 250, 700};
      const RowDispatcher dispatcher(replicas, rule, borders);
      const DealtRound round = dispatcher.deal(random_batches(key, 1000));
      EXPECT_EQ(dispatcher.deal(random_batches(key, 1000)).replica_of, round.replica_of);
      for (size_t b = 0; b < round.batches.size(); ++b) {
        ASSERT_EQ(round.replica_of[b].size(), round.batches[b].row_lengths.size());
        for (size_t row = 0; row < round.replica_of[b].size(); ++row) {
          EXPECT_LE(round.batches[b].row_lengths[row], replicas[static_cast<size_t>(round.replica_of[b][row])].reach());
        }
      }
    }
  }
}

TEST(RowDispatcher, BalancesTheReplicasTime) {
  // Of a replica twice as fast: twice the tokens, where rows are many; even shares leave the slow one behind.
  std::vector<BatchShape> batches(1);
  for (int64_t row = 0; row < 60; ++row) batches[0].row_lengths.push_back(20 + row % 7 * 10);
  const std::vector<Configuration> replicas{replica(1000, 1), replica(1000, 2)};
  const std::vector<double> balanced = tokens_of(RowDispatcher(replicas, DispatchRule::balanced).deal(batches), 2);
  const std::vector<double> even = tokens_of(RowDispatcher(replicas, DispatchRule::even).deal(batches), 2);
  EXPECT_NEAR(balanced[1] / balanced[0], 2, 0.15);
  EXPECT_NEAR(even[1] / even[0], 1, 0.1);
}

TEST(RowDispatcher, GreedilySendsShortRowsToReplicasForShortRows) {
  std::vector<BatchShape> batches(1);
  for (int64_t row = 0; row < 100; ++row) batches[0].row_lengths.push_back(row < 98 ? 50 : 800);
  const std::vector<Configuration> replicas{replica(100, 3), replica(1000, 1)};
  const DealtRound round = RowDispatcher(replicas, DispatchRule::greedy).deal(batches);
  for (size_t row = 0; row < 100; ++row) EXPECT_EQ(round.replica_of[0][row], row < 98 ? 0 : 1);
  const DealtRound balanced = RowDispatcher(replicas, DispatchRule::balanced).deal(batches);
  EXPECT_GT(std::ranges::count(balanced.replica_of[0], 1), 2) << "the replica for long rows takes short ones, too";
}

TEST(RowDispatcher, DealsByTheBordersThatItIsGiven) {
  std::vector<BatchShape> batches(1);
  for (int64_t row = 0; row < 40; ++row) batches[0].row_lengths.push_back(row < 20 ? 10 : 90);
  const std::vector<Configuration> replicas{replica(1000, 1), replica(1000, 1)};
  // In one bucket every row is worth the mean: as many rows to each, long ones as they come.
  const std::vector<double> together = tokens_of(RowDispatcher(replicas, DispatchRule::balanced, {1000}).deal(batches), 2);
  const std::vector<double> apart = tokens_of(RowDispatcher(replicas, DispatchRule::balanced, {10, 90}).deal(batches), 2);
  EXPECT_EQ(together[0] + together[1], 2000);
  EXPECT_NEAR(apart[0], apart[1], 20);
  EXPECT_EQ(tokens_of(RowDispatcher(replicas, DispatchRule::balanced).deal(batches), 2), apart) << "its own borders are these";
}

TEST(RowDispatcher, FindsTheBordersOfAllJobsData) {
  JobShape small{.name = "small", .batch_size = 8, .lengths = histogram_of(std::vector<int64_t>{20, 20, 30})};
  JobShape large{.name = "large", .batch_size = 2, .lengths = histogram_of(std::vector<int64_t>{900, 1000})};
  const std::vector<int64_t> borders = borders_of_jobs(std::vector{small, large});
  ASSERT_FALSE(borders.empty());
  EXPECT_LE(borders.size(), 16u);
  EXPECT_TRUE(std::ranges::is_sorted(borders));
  EXPECT_GE(borders.back(), 1000);
  EXPECT_LE(borders.front(), 32) << "short rows have a bucket of their own";
  EXPECT_TRUE(borders_of_jobs({}).empty());
}

TEST(RowDispatcher, RefusesARowThatNoReplicaTakes) {
  EXPECT_THROW(RowDispatcher({replica(100, 1), replica(200, 1)}, DispatchRule::balanced).deal({{.job = 3, .step = 0, .row_lengths = {10, 201}}}),
               InternalError);
}

}  // namespace
}  // namespace cotune
