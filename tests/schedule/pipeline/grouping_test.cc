#include "schedule/pipeline/grouping.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "base/error.h"
#include "schedule/random_batches.h"

namespace cotune {
namespace {

std::vector<double> random_latencies(Dice& dice, int64_t count) {
  std::vector<double> latencies;
  while (count-- > 0) latencies.push_back(static_cast<double>(dice.between(0, 40)));
  return latencies;
}

void expect_partition(const Buckets& buckets, size_t tasks, int64_t bucket_count) {
  std::set<int32_t> seen;
  size_t members = 0;
  for (const std::vector<int32_t>& bucket : buckets) {
    EXPECT_FALSE(bucket.empty());
    seen.insert(bucket.begin(), bucket.end());
    members += bucket.size();
  }
  EXPECT_EQ(static_cast<int64_t>(buckets.size()), bucket_count);
  EXPECT_EQ(seen.size(), tasks);
  EXPECT_EQ(members, tasks);
}

/// The least imbalance over all assignments of tasks to buckets, of at most so many tasks each. Of empty buckets, which are alike, the
/// first is tried.
double brute_force(const std::vector<double>& latencies, Buckets& buckets, size_t next, size_t most = 8) {
  if (next == latencies.size()) {
    const bool has_empty =
        std::any_of(buckets.begin(), buckets.end(), [](const auto& b) { return b.empty(); });
    return has_empty ? std::numeric_limits<double>::infinity() : imbalance(latencies, buckets);
  }
  double best = std::numeric_limits<double>::infinity();
  for (std::vector<int32_t>& bucket : buckets) {
    if (bucket.size() == most) continue;
    bucket.push_back(static_cast<int32_t>(next));
    best = std::min(best, brute_force(latencies, buckets, next + 1, most));
    bucket.pop_back();
    if (bucket.empty()) break;
  }
  return best;
}

TEST(BalancedBuckets, EqualBruteForceUpToEightTasks) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Dice dice(seed);
    const std::vector<double> latencies = random_latencies(dice, 1 + static_cast<int64_t>(seed % 8));
    for (int64_t count = 1; count <= static_cast<int64_t>(latencies.size()); ++count) {
      const Buckets buckets = balanced_buckets(latencies, count);
      expect_partition(buckets, latencies.size(), count);
      Buckets empty(static_cast<size_t>(count));
      EXPECT_NEAR(imbalance(latencies, buckets), brute_force(latencies, empty, 0), 1e-9) << seed << ", " << count << " buckets";
    }
  }
}

TEST(BalancedPairs, EqualBruteForceUpToEightTasks) {
  for (uint64_t seed = 0; seed < 80; ++seed) {
    Dice dice(seed);
    const int64_t tasks = 1 + static_cast<int64_t>(seed % 8);
    const std::vector<double> latencies = random_latencies(dice, tasks);
    for (int64_t count = (tasks + 1) / 2; count <= tasks; ++count) {
      const Buckets pairs = balanced_pairs(latencies, count);
      expect_partition(pairs, latencies.size(), count);
      Buckets empty(static_cast<size_t>(count));
      EXPECT_NEAR(imbalance(latencies, pairs), brute_force(latencies, empty, 0, 2), 1e-9) << seed << ", " << count << " buckets";
    }
  }
  EXPECT_THROW(balanced_pairs(std::vector<double>{1, 2, 3}, 1), InternalError);
  EXPECT_THROW(balanced_pairs(std::vector<double>{1, 2, 3}, 4), InternalError);
}

TEST(BalancedBuckets, ByExchangeAreNearlyAsBalanced) {
  double exchanged = 0;
  double exact = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Dice dice(seed);
    const std::vector<double> latencies = random_latencies(dice, dice.between(4, 12));
    const int64_t count = dice.between(2, 4);
    const Buckets buckets = balanced_buckets_by_exchange(latencies, count);
    expect_partition(buckets, latencies.size(), count);
    exchanged += imbalance(latencies, buckets);
    exact += imbalance(latencies, balanced_buckets(latencies, count));
  }
  EXPECT_GE(exchanged, exact - 1e-6);
  EXPECT_LE(exchanged, 1.1 * exact) << exchanged << " against " << exact;
}

TEST(BalancedBuckets, OfManyTasksAreAPartitionToo) {
  Dice dice(1);
  const std::vector<double> latencies = random_latencies(dice, 64);
  for (const int64_t count : {1, 2, 7, 63, 64})
    expect_partition(balanced_buckets(latencies, count), 64, count);
  EXPECT_THROW(balanced_buckets(latencies, 0), InternalError);
  EXPECT_THROW(balanced_buckets(latencies, 65), InternalError);
}

}  // namespace
}  // namespace cotune
