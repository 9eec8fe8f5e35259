#include "watch/line_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

namespace cotune {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(LineChart, LeavesOutPointsThatAreNotFinite) {
  const LineChart chart{.title = "loss", .curves = {{.name = "a", .points = {{0, 1}, {1, NAN}, {2, INFINITY}, {3, 2}}}}};
  const std::string svg = to_svg(chart);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  EXPECT_THAT(svg, HasSubstr("<polyline class=\"c0\" data-name=\"a\" points=\"62.00,206.000 546.00,30.000 \"/>"));
}

TEST(LineChart, CurvesOfTwoDozenColoursDiffer) {
  LineChart chart{.title = "t"};
  for (size_t i = 0; i < 24; ++i) chart.curves.push_back({.name = "a", .colour = i, .with_marks = true, .points = {{0, 1}, {1, 2}}});
  const std::string svg = to_svg(chart);
  std::set<std::string> lines, swatches;
  for (size_t at = 0; (at = svg.find("<polyline class=\"", at)) != std::string::npos; ++at) lines.insert(svg.substr(at, svg.find("data-name", at) - at));
  for (size_t i = 0; i < 24; ++i) swatches.insert(swatch(i));
  EXPECT_EQ(lines.size(), 24u);
  EXPECT_EQ(swatches.size(), 24u);
  for (const char* mark : {"<circle class=\"mark c0\"", "<rect class=\"mark c0\"", "<path class=\"mark c0\""}) EXPECT_THAT(svg, HasSubstr(mark));
}

TEST(LineChart, OfNothingSaysSo) {
  EXPECT_THAT(to_svg({.title = "<t>"}), HasSubstr("nothing was recorded"));
  EXPECT_THAT(to_svg({.title = "<t>", .curves = {{.points = {{0, NAN}}}}}), HasSubstr("&lt;t&gt;"));
}

TEST(LineChart, OfASinglePointOrEqualValuesIsDrawn) {
  for (const double value : {0.0, 5.0, -3.0, 1e12, 1e-12, 1e-300}) {
    const std::string svg =
        to_svg({.title = "t", .curves = {{.name = "a", .points = {{1, value}}}, {.name = "b", .points = {{1, value}, {2, value}}}}});
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_THAT(svg, HasSubstr("<circle"));
    EXPECT_LT(svg.size(), 6000u);
  }
}

TEST(LineChart, OfLogarithmsShowsWhatTheyAreOf) {
  const LineChart chart{.title = "t", .x_scale = Scale::powers, .curves = {{.name = "a", .points = {{-5, 1}, {std::log10(0.03), 2}}}}};
  const std::string svg = to_svg(chart);
  for (const char* tick : {">1e-5<", ">3e-4<", ">1e-3<", ">0.01<", ">0.03<"}) EXPECT_THAT(svg, HasSubstr(tick));
  for (const double length : {0.0, 0.1, 0.5, 0.8, 1.4, 3.0, 9.0, 300.0}) {
    const std::string of_length =
        to_svg({.title = "t", .x_scale = Scale::powers, .curves = {{.name = "a", .points = {{-4, 1}, {-4 + length / 2, 2}, {-4 + length, 1}}}}});
    EXPECT_THAT(of_length, HasSubstr(">1e-4<")) << length;
    EXPECT_LT(of_length.size(), 4000u) << length;
  }
}

TEST(LineChart, HasALegendWhereItLeavesRoomForTheTitle) {
  LineChart chart{.title = "all jobs", .with_legend = true};
  for (const char* name : {"first", "second"}) chart.curves.push_back({.name = name, .points = {{0, 1}, {1, 2}}});
  const std::string svg = to_svg(chart);
  EXPECT_LT(svg.find(">first</text>"), svg.find(">second</text>"));
  EXPECT_THAT(svg, HasSubstr("text-anchor=\"end\">second</text>"));
  chart.curves.push_back({.name = std::string(64, 'x'), .points = {{0, 1}, {1, 2}}});
  EXPECT_THAT(to_svg(chart), Not(HasSubstr("second</text>")));
}

TEST(LineChart, MarksTheValuesThatItIsTold) {
  LineChart chart{.title = "t", .x_ticks = {4, 8, 8.1, 64}, .curves = {{.name = "a", .points = {{4, 1}, {64, 2}}}}};
  const std::string svg = to_svg(chart);
  for (const char* tick : {">4<", ">8<", ">64<"}) EXPECT_THAT(svg, HasSubstr(tick));
  for (const char* none : {">8.1<", ">10<", ">20<"}) EXPECT_THAT(svg, Not(HasSubstr(none)));  // no room, and not asked for
}

TEST(LineChart, OfManyPointsStaysSmall) {
  Curve curve{.name = "a"};
  for (int i = 0; i < 100'000; ++i) curve.points.push_back({static_cast<double>(i), std::sin(i * 1e-3)});
  EXPECT_LT(to_svg({.title = "t", .curves = {curve}}).size(), 10'000u);
}

}  // namespace
}  // namespace cotune
