#include "schedule/pipeline/exchange_times.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace cotune {
namespace {

GradientSlice slice_of(int64_t values, std::vector<std::vector<int32_t>> holders, int32_t owner) {
  GradientSlice slice{.end = values, .entries = {}, .values = values, .holders = std::move(holders)};
  slice.owner = owner;
  return slice;
}

std::map<int32_t, double> by_rank(const std::vector<ExchangeTimes::End>& ends) {
  std::map<int32_t, double> result;
  for (const ExchangeTimes::End& end : ends) result[end.rank] = end.at_s;
  return result;
}

TEST(ExchangeMessages, AreSummandsToOwnersAndSumsToAllThatHoldThem) {
  // Rank 0 has all; 1 and 2 divide it, but for a slice that both have.
  const std::array slices{slice_of(10, {{0}, {1}}, 0), slice_of(20, {{0}, {2}}, 2), slice_of(5, {{0}, {1, 2}}, 1)};
  const ExchangeMessages messages = exchange_messages(slices, {0, 1, 2});
  EXPECT_EQ(messages.given, (ExchangeMessages::Values{{{1, 0}, 10}, {{0, 2}, 20}, {{0, 1}, 5}}));
  EXPECT_EQ(messages.returned, (ExchangeMessages::Values{{{0, 1}, 10}, {{2, 0}, 20}, {{1, 0}, 5}, {{1, 2}, 5}}));
  int64_t values = 0;
  for (const ExchangeMessages::Values& each : {messages.given, messages.returned}) {
    for (const auto& [ranks, count] : each) values += count;
  }
  EXPECT_EQ(values, values_moved(slices));
}

TEST(ExchangeTimes, AreThoseOfHalvesThatTwoRanksAdd) {
  const std::array slices{slice_of(100, {{0}, {1}}, 0), slice_of(100, {{0}, {1}}, 1)};
  const ExchangeCosts costs{.messages = {{7, exchange_messages(slices, {0, 1})}}, .value_bytes = 4, .link = {1, 100}};
  const std::array order{JobStep{7, 0}, JobStep{7, 1}};
  ExchangeTimes times(costs, order);
  EXPECT_TRUE(times.has({7, 1}));
  EXPECT_FALSE(times.has({8, 0}));
  EXPECT_TRUE(times.post({8, 0}, 0, 0).empty());
  EXPECT_TRUE(times.post({7, 0}, 0, 0).empty());
  // From 10 on: 4 s and the latency for each half, once more back; then the record, of 16 bytes. Rank 0 has gone before: its half is there
  // when rank 1 begins, so that 1 has its sums at once.
  const auto ends = by_rank(times.post({7, 0}, 1, 10));
  // rank 1: summand there at 5; its own leaves 10 to 14, is there at 15; its sums leave 14 to 18, are there at 19. Rank 0's sums leave
  // 15 to 19, are there at 20; then rank 1's record leaves, is there at 21.16.
  EXPECT_NEAR(ends.at(0), 21.16, 1e-9);
  EXPECT_NEAR(ends.at(1), 21.16 + 1.16, 1e-9);
}

TEST(ExchangeTimes, FollowEachOtherInOneOrderWhateverIsPostedFirst) {
  const std::array slices{slice_of(100, {{0}, {1}}, 0)};
  const ExchangeMessages both = exchange_messages(slices, {0, 1});
  const ExchangeCosts costs{.messages = {{0, both}, {1, both}}, .value_bytes = 4, .link = {0, 100}};
  const std::array order{JobStep{0, 0}, JobStep{1, 0}};
  ExchangeTimes times(costs, order);
  EXPECT_TRUE(times.post({1, 0}, 0, 0).empty());
  EXPECT_TRUE(times.post({1, 0}, 1, 0).empty());
  EXPECT_TRUE(times.post({0, 0}, 0, 1).empty());
  const std::vector<ExchangeTimes::End> ends = times.post({0, 0}, 1, 2);
  ASSERT_EQ(ends.size(), 4u);
  std::map<JobStep, double> last;
  for (const ExchangeTimes::End& end : ends) last[end.step] = std::max(last[end.step], end.at_s);
  // 4 s there, 4 s back, a record there and back of 0.16 s each; the next one begins when the one before has ended.
  EXPECT_NEAR((last[{0, 0}]), 2 + 8 + 0.32, 1e-9);
  EXPECT_NEAR((last[{1, 0}]), 2 + 2 * (8 + 0.32), 1e-9);
}

TEST(ExchangeTimes, OfARankWithManyPeersAddUpOnItsLink) {
  const std::array slices{slice_of(100, {{0}, {1}, {2}, {3}}, 0)};
  const ExchangeCosts costs{.messages = {{0, exchange_messages(slices, {0, 1, 2, 3})}}, .value_bytes = 4, .link = {0, 100}};
  const std::array order{JobStep{0, 0}};
  ExchangeTimes times(costs, order);
  for (const int32_t rank : {0, 1, 2}) EXPECT_TRUE(times.post({0, 0}, rank, 0).empty());
  // Three summands come at once, three sums go one after another; then three records, and three answers one after another.
  EXPECT_NEAR(by_rank(times.post({0, 0}, 3, 0)).at(3), 4 + 12 + 0.16 + 3 * 0.16, 1e-9);
}

}  // namespace
}  // namespace cotune
