#include "schedule/pipeline/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "schedule/random_batches.h"

namespace cotune {
namespace {

double largest(const std::vector<double>& costs, const std::vector<int64_t>& starts) {
  double most = 0;
  for (size_t s = 0; s + 1 < starts.size(); ++s) {
    double sum = 0;
    for (int64_t i = starts[s]; i < starts[s + 1]; ++i) sum += costs[static_cast<size_t>(i)];
    most = std::max(most, sum);
  }
  return most;
}

double brute_force(const std::vector<double>& costs, int64_t stages, std::vector<int64_t> starts) {
  const auto items = static_cast<int64_t>(costs.size());
  if (static_cast<int64_t>(starts.size()) == stages) {
    starts.push_back(items);
    return largest(costs, starts);
  }
  double best = 1e300;
  for (int64_t next = starts.back() + 1; next < items; ++next) {
    std::vector<int64_t> longer = starts;
    longer.push_back(next);
    best = std::min(best, brute_force(costs, stages, longer));
  }
  return best;
}

TEST(PartitionStages, EqualsBruteForce) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Dice dice(seed);
    std::vector<double> costs;
    for (int64_t items = dice.between(1, 9); items-- > 0;)
      costs.push_back(static_cast<double>(dice.between(0, 20)));
    const int64_t stages = dice.between(1, static_cast<int64_t>(costs.size()));
    const std::vector<int64_t> starts = partition_stages(costs, stages);
    ASSERT_EQ(static_cast<int64_t>(starts.size()), stages + 1);
    EXPECT_EQ(starts.front(), 0);
    EXPECT_EQ(starts.back(), static_cast<int64_t>(costs.size()));
    EXPECT_TRUE(std::adjacent_find(starts.begin(), starts.end(), std::greater_equal<>()) == starts.end());
    EXPECT_DOUBLE_EQ(largest(costs, starts), brute_force(costs, stages, {0})) << seed;
  }
}

/// The largest stage's costs over the smallest one's.
double imbalance(const std::vector<double>& costs, const std::vector<int64_t>& starts) {
  double least = largest(costs, starts);
  for (size_t s = 0; s + 1 < starts.size(); ++s) least = std::min(least, largest(costs, {starts[s], starts[s + 1]}));
  return largest(costs, starts) / least;
}

TEST(PartitionStages, GivesTheStageOfAHeavyHeadFewerLayers) {
  std::vector<double> costs(22, 1.0);  // TinyLlama's layers on four stages
  EXPECT_EQ(partition_stages(costs, 4), (std::vector<int64_t>{0, 6, 12, 18, 22}));
  EXPECT_DOUBLE_EQ(imbalance(costs, partition_stages(costs, 4)), 6.0 / 4);
  costs.push_back(4);  // the head: 26 in all, at most 7 a stage
  EXPECT_EQ(partition_stages(costs, 4), (std::vector<int64_t>{0, 7, 14, 21, 23}));
  EXPECT_DOUBLE_EQ(imbalance(costs, partition_stages(costs, 4)), 7.0 / 5);
}

TEST(PartitionStages, RefusesMoreStagesThanItems) {
  EXPECT_THROW(partition_stages(std::vector<double>{1, 2}, 3), InternalError);
  EXPECT_THROW(partition_stages(std::vector<double>{1, 2}, 0), InternalError);
  EXPECT_THROW(partition_stages(std::vector<double>{1, -2}, 1), InternalError);
}

}  // namespace
}  // namespace cotune
