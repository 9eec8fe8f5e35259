#include "watch/line_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/quantity_text.h"
#include "base/xml_text.h"
#include "watch/screen_text.h"

namespace cotune {
namespace {

constexpr double width = 560, height = 240, left = 62, right = 14, top = 30, bottom = 34;
constexpr size_t most_points = 400;
constexpr double largest = 1e15;  // beyond it neighbouring ticks would be the same number

struct Range {
  double low = INFINITY, high = -INFINITY;
  void take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
  /// To a length that numbers of this size tell apart.
  void widen() {
    const double size = std::max(std::abs(low), std::abs(high));
    if (high - low <= size * 1e-6) high = low + (size == 0 ? 1 : size * 0.1);
  }
};

std::vector<ChartPoint> finite(const std::vector<ChartPoint>& points) {
  std::vector<ChartPoint> kept;
  std::copy_if(points.begin(), points.end(), std::back_inserter(kept),
               [](const ChartPoint& point) { return std::abs(point.x) < largest && std::abs(point.y) < largest; });
  return kept;
}

std::vector<ChartPoint> thinned(const std::vector<ChartPoint>& points) {
  if (points.size() <= most_points) return points;
  std::vector<ChartPoint> means(most_points);
  for (size_t i = 0; i < most_points; ++i) {
    const size_t begin = i * points.size() / most_points, end = (i + 1) * points.size() / most_points;
    for (size_t k = begin; k < end; ++k) {
      means[i].x += points[k].x / static_cast<double>(end - begin);
      means[i].y += points[k].y / static_cast<double>(end - begin);
    }
  }
  return means;
}

/// `3e-4`, as jobs files have it.
std::string exponent_text(double value) {
  const double power = std::floor(std::log10(value) + 1e-9);
  return fmt::format("{:.3g}e{:.0f}", value / std::pow(10, power), power);
}

std::string value_text(double value, Scale scale) {
  if (scale == Scale::powers) {
    const double number = std::pow(10, value);
    return number < 0.0099 || number >= 1e6 ? exponent_text(number) : value_text(number, Scale::plain);
  }
  if (scale == Scale::bytes) return bytes_text(static_cast<int64_t>(value));
  if (scale == Scale::seconds) return duration_text(value);
  if (std::abs(value) >= 1e6) return fmt::format("{:.4g}M", value / 1e6);
  if (std::abs(value) >= 1e4) return fmt::format("{:.4g}k", value / 1e3);
  return fmt::format("{:.4g}", value);
}

/// At most about `count` steps of a round number: of powers of ten, of two for bytes, of minutes and hours for seconds.
double tick_of(double range, int count, Scale scale) {
  const double rough = range / count;
  if (scale == Scale::seconds) {
    for (const double step : {1., 2., 5., 10., 15., 30., 60., 120., 300., 600., 900., 1800., 3600., 7200., 14400., 21600., 43200.}) {
      if (rough <= step) return step;
    }
  }
  if (scale == Scale::bytes) return std::exp2(std::ceil(std::log2(rough)));
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (rough <= step * power * 1.0001) return step * power;
  }
  return 10 * power;
}

/// At most about seven round numbers within the range.
std::vector<double> ticks_of(const Range& range, Scale scale) {
  std::vector<double> ticks;
  const double length = range.high - range.low;
  if (scale == Scale::powers && length >= 0.7) {
    const std::vector<double> factors = length < 1.5   ? std::vector<double>{1, 2, 5}
                                        : length < 3.5 ? std::vector<double>{1, 3}
                                                       : std::vector<double>{1};
    const double every = std::ceil(length / 7);
    for (double power = std::floor(range.low); power <= range.high + 1e-9; power += every) {
      for (const double factor : factors) {
        const double tick = power + std::log10(factor);
        if (tick >= range.low - 1e-9 && tick <= range.high + 1e-9) ticks.push_back(tick);
      }
    }
    return ticks;
  }
  const double step = tick_of(length, 6, scale), first = std::ceil(range.low / step) * step;
  for (int64_t i = 0, count = static_cast<int64_t>((range.high - first) / step + 1e-6); i <= count; ++i)
    ticks.push_back(first + static_cast<double>(i) * step);
  return ticks;
}

constexpr size_t colours = 8, shapes = 3;

/// A disc, a square or a triangle around a point. look: further classes, each after a space.
std::string mark(size_t colour, const std::string& look, double x, double y, double radius, const std::string& inside) {
  const std::string of = fmt::format("class=\"mark c{}{}\"", colour % colours, look);
  switch (colour / colours % shapes) {
    case 0:
      return fmt::format("<circle {} r=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\">{}</circle>", of, radius, x, y, inside);
    case 1:
      return fmt::format("<rect {} x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\">{}</rect>", of, x - radius, y - radius, 2 * radius,
                         2 * radius, inside);
    default:
      return fmt::format("<path {} d=\"M{:.1f} {:.1f}l{} {}h{}z\">{}</path>", of, x, y - radius, radius, 2 * radius, -2 * radius, inside);
  }
}

std::string mark_look(const Curve& curve) { return fmt::format("{}{}", curve.hollow ? " hollow" : "", curve.faint ? " faint" : ""); }

/// `c0`, and beyond the first colours how the line is dashed.
std::string line_class(const Curve& curve) {
  const size_t dashes = curve.colour / colours % shapes;
  return fmt::format("c{}{}{}", curve.colour % colours, dashes > 0 ? fmt::format(" d{}", dashes) : "", curve.faint ? " faint" : "");
}

constexpr double title_letter = 9.2, letter = 7;  // widths, rather too large: of wide fonts, and titles are bold
constexpr size_t least_title = 32;                  // columns that a legend leaves to a title that has as many

bool has_key(const Curve& curve) { return !curve.faint && !curve.points.empty(); }

double name_width(const Curve& curve) { return letter * static_cast<double>(columns_of(curve.name)); }

double key_width(const Curve& curve) { return (curve.with_marks ? 25 : 15) + name_width(curve); }

/// What the title and its legend share.
struct Heading {
  size_t title_columns;
  bool with_legend;
};

Heading heading(const LineChart& chart) {
  double keys = 0;
  for (const Curve& curve : chart.curves) keys += has_key(curve) ? key_width(curve) : 0;
  const auto columns = [](double room) { return static_cast<size_t>(std::max(room / title_letter, 0.0)); };
  const double room = width - left - right;
  const bool fits = columns(room - keys) >= std::min(columns_of(chart.title), least_title);
  return chart.with_legend && fits ? Heading{columns(room - keys), true} : Heading{columns(room), false};
}

/// The names of the curves beside the title, in their order, with their marks before them.
std::string legend(const LineChart& chart) {
  std::string svg;
  double end = width - right;
  for (auto curve = chart.curves.rbegin(); curve != chart.curves.rend(); ++curve) {
    if (!has_key(*curve)) continue;
    svg = fmt::format("<text class=\"key c{}\" x=\"{:.1f}\" y=\"16\" text-anchor=\"end\">{}</text>", curve->colour % colours, end,
                      xml_text(curve->name)) +
          svg;
    if (curve->with_marks) svg = mark(curve->colour, mark_look(*curve), end - name_width(*curve) - 4, 12, 3, "") + svg;
    end -= key_width(*curve);
  }
  return svg;
}

}  // namespace

std::string swatch(size_t colour, bool faint) {
  return fmt::format("<svg class=\"swatch\" viewBox=\"0 0 8 8\" aria-hidden=\"true\">{}</svg>", mark(colour, faint ? " faint" : "", 4, 4, 4, ""));
}

std::string to_svg(const LineChart& chart) {
  std::vector<Curve> curves = chart.curves;
  Range x, y;
  for (Curve& curve : curves) {
    curve.points = thinned(finite(curve.points));
    for (const ChartPoint& point : curve.points) {
      x.take(point.x);
      y.take(point.y);
    }
  }
  std::string svg = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\"", width, height, xml_text(chart.title));
  const Heading of = heading(chart);
  const std::string title = fmt::format("<text class=\"title\" x=\"{}\" y=\"16\"><title>{}</title>{}</text>", left, xml_text(chart.title),
                                        xml_text(with_both_ends(printable(chart.title), of.title_columns)));
  if (y.empty()) {
    return svg + fmt::format(">{}<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">nothing was recorded</text></svg>\n", title, width / 2,
                             height / 2);
  }
  if (chart.from_zero) y.low = std::min(y.low, 0.0);
  x.widen();
  y.widen();
  const double y_tick = tick_of(y.high - y.low, 4, chart.y_scale);
  y.low = std::floor(y.low / y_tick + 1e-9) * y_tick;
  y.high = std::ceil(y.high / y_tick - 1e-9) * y_tick;
  const auto at_x = [&](double value) { return left + (value - x.low) / (x.high - x.low) * (width - left - right); };
  const auto at_y = [&](double value) { return height - bottom - (value - y.low) / (y.high - y.low) * (height - top - bottom); };
  svg += fmt::format(" data-x=\"{},{},{}\" data-y=\"{},{},{}\">{}", x.low, x.high, static_cast<int>(chart.x_scale), y.low, y.high,
                     static_cast<int>(chart.y_scale), title);
  for (int64_t i = 0, count = std::lround((y.high - y.low) / y_tick); i <= count; ++i) {
    const double tick = y.low + static_cast<double>(i) * y_tick;
    svg += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/><text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>",
                       left, at_y(tick), width - right, left - 6, at_y(tick) + 4,
                       value_text(std::abs(tick) < y_tick / 1e6 ? 0 : tick, chart.y_scale));
  }
  double free = 0;
  for (const double tick : chart.x_ticks.empty() ? ticks_of(x, chart.x_scale) : chart.x_ticks) {
    const std::string text = value_text(tick, chart.x_scale);
    const double half = letter * static_cast<double>(text.size()) / 2, middle = std::min(at_x(tick), width - half - 2);
    if (middle - half < free) continue;
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>", middle, height - bottom + 17, text);
    free = middle + half;
  }
  svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>", width - right, height - 4, xml_text(chart.x_name));
  std::reverse(curves.begin(), curves.end());  // what is drawn later covers what is there
  std::stable_sort(curves.begin(), curves.end(), [](const Curve& a, const Curve& b) { return a.faint > b.faint; });
  if (of.with_legend) svg += legend(chart);
  for (const Curve& curve : curves) {
    std::string points;
    for (const ChartPoint& point : curve.points) points += fmt::format("{:.2f},{:.3f} ", at_x(point.x), at_y(point.y));
    if (curve.points.size() > 1)
      svg += fmt::format("<polyline class=\"{}\" data-name=\"{}\" points=\"{}\"/>", line_class(curve), xml_text(curve.name), points);
    for (const ChartPoint& point : curve.points) {
      if (!curve.with_marks && curve.points.size() > 1) break;
      svg += mark(
          curve.colour, mark_look(curve), at_x(point.x), at_y(point.y), 3,
          fmt::format("<title>{}: {} at {}</title>", xml_text(curve.name), value_text(point.y, chart.y_scale), value_text(point.x, chart.x_scale)));
    }
  }
  return svg + "<path class=\"cursor\"/><text class=\"readout\"></text></svg>\n";
}

}  // namespace cotune
