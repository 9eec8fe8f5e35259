/// Curves as inline SVG for a page of HTML.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace cotune {

struct ChartPoint {
  double x = 0, y = 0;  ///< left out where one is not finite, or beyond 10^15
};

struct Curve {
  std::string name;
  size_t colour = 0;        ///< of the page's palette (run_page.cc) of eight; any number: others have other marks and dashes, up to 24 that differ
  bool with_marks = false;  ///< a mark at every point
  bool hollow = false;      ///< its marks: one that is filled leaves a ring of them where they stand at one place
  bool faint = false;       ///< behind the others
  std::vector<ChartPoint> points;  ///< by ascending x
};

/// How the numbers of an axis are shown. powers: they are logarithms to base 10, shown as what they are logarithms of: -3.52 as 3e-4.
enum class Scale { plain, bytes, seconds, powers };

struct LineChart {
  std::string title;
  std::string x_name;
  Scale x_scale = Scale::plain, y_scale = Scale::plain;
  bool from_zero = false;        ///< the y axis begins there
  bool with_legend = false;      ///< the names of the curves that are not faint, where they find room beside the title
  std::vector<double> x_ticks;   ///< by ascending x; none: round numbers. One whose number would stand in that before it is left out
  std::vector<Curve> curves;     ///< the first in front
};

/// The mark of such a curve in its colour, for a table that names the curves of charts.
std::string swatch(size_t colour, bool faint = false);

/// Curves of many points are drawn through the means of equally many neighbours. A chart without a point says so.
std::string to_svg(const LineChart& chart);

}  // namespace cotune
