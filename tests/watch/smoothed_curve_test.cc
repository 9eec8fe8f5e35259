#include "watch/smoothed_curve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace cotune {
namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

std::vector<ChartPoint> curve(size_t count) {
  std::vector<ChartPoint> points;
  for (size_t i = 0; i < count; ++i) points.push_back({static_cast<double>(i), std::sin(static_cast<double>(i * i % 97)) + 2});
  return points;
}

double mean_around(const std::vector<ChartPoint>& points, size_t at) {
  const size_t reach = points.size() / 30;
  double sum = 0;
  int count = 0;
  for (size_t i = at - std::min(at, reach); i < std::min(points.size(), at + reach + 1); ++i) {
    if (!std::isfinite(points[i].y)) continue;
    sum += points[i].y;
    ++count;
  }
  return count > 0 ? sum / count : not_a_number;
}

TEST(SmoothedCurve, HasTheMeanOfEveryWindow) {
  for (const size_t count : {0u, 1u, 2u, 29u, 30u, 31u, 59u, 60u, 61u, 89u, 90u, 91u, 200u, 1000u}) {
    const std::vector<ChartPoint> points = curve(count), means = smoothed(points);
    ASSERT_EQ(means.size(), count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(means[i].x, points[i].x);
      EXPECT_NEAR(means[i].y, mean_around(points, i), 1e-12) << i << " of " << count;
    }
  }
}

TEST(SmoothedCurve, LeavesOutWhatIsNotFinite) {
  std::vector<ChartPoint> points = curve(300);
  points[0].y = points[120].y = not_a_number;
  points[121].y = std::numeric_limits<double>::infinity();
  for (size_t i = 200; i < 240; ++i) points[i].y = not_a_number;  // longer than a window
  const std::vector<ChartPoint> means = smoothed(points);
  for (size_t i = 0; i < points.size(); ++i) {
    const double expected = mean_around(points, i);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(means[i].y)) << i;
    } else {
      EXPECT_NEAR(means[i].y, expected, 1e-12) << i;
    }
  }
  EXPECT_TRUE(std::isnan(means[220].y));
}

TEST(SmoothedCurve, OfAHugeValueIsHugeNearItAlone) {
  std::vector<ChartPoint> points = curve(300);
  points[100].y = 1e30;
  const std::vector<ChartPoint> means = smoothed(points);
  EXPECT_NEAR(means[89].y, mean_around(points, 89), 1e-12);
  EXPECT_GT(means[90].y, 1e28);
  EXPECT_NEAR(means[111].y, mean_around(points, 111), 1e-12);
}

TEST(SmoothedCurve, OfAMillionPointsTakesAsManySteps) {  // at 10^10, which a sum for every window takes, the test run would hang
  const std::vector<ChartPoint> points = curve(1'000'000), means = smoothed(points);
  for (const size_t i : {size_t{0}, size_t{40'000}, size_t{500'001}, points.size() - 1}) {
    EXPECT_NEAR(means[i].y, mean_around(points, i), 1e-9) << i;
  }
}

}  // namespace
}  // namespace cotune
