#include "base/sample_spread.h"

#include <gtest/gtest.h>

namespace cotune {
namespace {

TEST(SampleSpread, IsTheDistanceOfTheQuartilesOverTheMedian) {
  const SampleSpread five = sample_spread({5, 1, 4, 2, 3});
  EXPECT_EQ(five.median, 3);
  EXPECT_DOUBLE_EQ(five.spread, (4.0 - 2.0) / 3);
  const SampleSpread two = sample_spread({1, 3});
  EXPECT_EQ(two.median, 2);
  EXPECT_DOUBLE_EQ(two.spread, (2.5 - 1.5) / 2);
  EXPECT_EQ(sample_spread({7}).median, 7);
  EXPECT_EQ(sample_spread({7}).spread, 0);
  EXPECT_EQ(sample_spread({0, 0, 1}).spread, 0) << "of a median of nothing";
}

}  // namespace
}  // namespace cotune
