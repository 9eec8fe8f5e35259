#include "watch/trend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

namespace cotune {
namespace {

TEST(Trend, KeepsFewValuesAsTheyAre) {
  Trend trend(8);
  for (const double value : {3.0, 1.0, 2.0}) trend.add(value);
  EXPECT_EQ(trend.points(), (std::vector<double>{3, 1, 2}));
}

TEST(Trend, OfAnyLengthHasFewPointsWhoseMeanIsThatOfAllValues) {
  for (const int count : {8, 64, 1000, 4096}) {
    Trend trend(16);
    for (int i = 0; i < count; ++i) trend.add(i);
    const std::vector<double> points = trend.points();
    EXPECT_LE(points.size(), 17u);
    EXPECT_GE(points.size(), std::min(8, count) * 1u);
    for (size_t i = 1; i < points.size(); ++i) EXPECT_GT(points[i], points[i - 1]);
    if (count % 1024 == 0 || count == 64) {  // every point is of equally many
      EXPECT_DOUBLE_EQ(std::accumulate(points.begin(), points.end(), 0.0) / static_cast<double>(points.size()), (count - 1) / 2.0);
    }
  }
}

TEST(Trend, LeavesOutWhatIsNotFinite) {
  Trend trend;
  trend.add(std::nan(""));
  trend.add(std::numeric_limits<double>::infinity());
  EXPECT_TRUE(trend.points().empty());
}

}  // namespace
}  // namespace cotune
