#include "watch/smoothed_curve.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace cotune {
namespace {

struct Sum {
  double value = 0;
  size_t count = 0;  ///< of finite values
  Sum operator+(const Sum& other) const { return {value + other.value, count + other.count}; }
  double mean() const { return count > 0 ? value / static_cast<double>(count) : std::numeric_limits<double>::quiet_NaN(); }
};

/// Blocks as long as a window, with the sums from each block's begin and to its end: a window is what is left of one block and the
/// begin of the next. Nothing is subtracted, so that a huge value is felt in its own windows alone.
class WindowSums {
 public:
  WindowSums(const std::vector<ChartPoint>& points, size_t block) : block_(block), from_begin_(points.size()), to_end_(points.size()) {
    const auto of = [&](size_t i) { return std::isfinite(points[i].y) ? Sum{points[i].y, 1} : Sum{}; };
    for (size_t i = 0; i < points.size(); ++i) from_begin_[i] = i % block == 0 ? of(i) : from_begin_[i - 1] + of(i);
    for (size_t i = points.size(); i-- > 0;) to_end_[i] = i + 1 == points.size() || (i + 1) % block == 0 ? of(i) : to_end_[i + 1] + of(i);
  }

  /// Of begin..end, which is a whole block, or begins or ends with the points.
  Sum of(size_t begin, size_t end) const {
    if (begin / block_ != (end - 1) / block_) return to_end_[begin] + from_begin_[end - 1];
    return begin % block_ == 0 ? from_begin_[end - 1] : to_end_[begin];
  }

 private:
  size_t block_;
  std::vector<Sum> from_begin_, to_end_;
};

}  // namespace

size_t smoothing_reach(size_t point_count) { return point_count / 30; }

std::vector<ChartPoint> smoothed(const std::vector<ChartPoint>& points) {
  const size_t count = points.size(), reach = smoothing_reach(count);
  const WindowSums sums(points, 2 * reach + 1);
  std::vector<ChartPoint> means;
  means.reserve(count);
  for (size_t i = 0; i < count; ++i)
    means.push_back({points[i].x, sums.of(i - std::min(i, reach), std::min(count, i + reach + 1)).mean()});
  return means;
}

}  // namespace cotune
