#include "engine/collective_profiler.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

namespace cotune {
namespace {

std::vector<ProfiledCollective> measured(int64_t ranks, int64_t group, const std::vector<int64_t>& sizes, int sweeps) {
  CollectiveProfiler profiler(ranks, group, sizes);
  const auto sweep = [&] {
    std::vector<std::jthread> threads;
    for (int64_t rank = 0; rank < ranks; ++rank) threads.emplace_back([&profiler, rank] { profiler.sweep(rank); });
  };
  sweep();
  profiler.forget();
  for (int i = 0; i < sweeps; ++i) sweep();
  return profiler.collectives();
}

TEST(CollectiveProfiler, MeasuresEveryKindAndSizeOfAllGroupsAtTheSameTime) {
  const std::vector<ProfiledCollective> pairs = measured(5, 2, {64, 1 << 20}, 3);
  ASSERT_EQ(pairs.size(), 8u);
  std::set<std::pair<CollectiveKind, int64_t>> cases;
  for (const ProfiledCollective& each : pairs) {
    cases.emplace(each.kind, each.bytes);
    EXPECT_EQ(each.ranks, 2);
    EXPECT_EQ(each.count, 6) << "two pairs, three sweeps; the fifth rank has no other";
    EXPECT_GT(each.median, 0);
    EXPECT_LT(each.median, 10);
    EXPECT_GE(each.spread, 0);
  }
  EXPECT_EQ(cases.size(), 8u);
  // No machine carries a megabyte in less than a tenth of what 64 bytes take.
  for (size_t kind = 0; kind < 4; ++kind) EXPECT_GT(pairs[2 * kind + 1].median, 0.1 * pairs[2 * kind].median) << kind;
}

TEST(CollectiveProfiler, GivesEveryRankOfLargerGroupsAValueAndHasNoMessagesThere) {
  const std::vector<ProfiledCollective> three = measured(3, 3, {4, 1000}, 2);
  ASSERT_EQ(three.size(), 6u);
  for (size_t i = 0; i < three.size(); ++i) {
    EXPECT_EQ(three[i].kind, static_cast<CollectiveKind>(1 + i / 2));
    EXPECT_EQ(three[i].ranks, 3);
    EXPECT_EQ(three[i].bytes, i % 2 == 0 ? 12 : 1008);
    EXPECT_EQ(three[i].count, 2);
    EXPECT_GT(three[i].median, 0);
  }
}

}  // namespace
}  // namespace cotune
