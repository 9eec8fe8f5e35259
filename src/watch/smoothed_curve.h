#pragma once

#include <cstddef>
#include <vector>

#include "watch/line_chart.h"

namespace cotune {

/// How many neighbours on each side are in a point's mean, in a curve of so many points. 0: it is too short to be smoothed.
size_t smoothing_reach(size_t point_count);

/// Each point's mean with its neighbours, over a window that is a fifteenth of the curve (shorter at its ends), of the values that are
/// finite; NaN where none is. In a time that the number of points alone sets.
std::vector<ChartPoint> smoothed(const std::vector<ChartPoint>& points);

}  // namespace cotune
