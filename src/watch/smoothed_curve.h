#pragma once

#include <vector>

#include "watch/line_chart.h"

namespace cotune {

/// Each point's mean with its neighbours, over a window that is a fifteenth of the curve (shorter at its ends), of the values that are
/// finite; NaN where none is. In a time that the number of points alone sets.
std::vector<ChartPoint> smoothed(const std::vector<ChartPoint>& points);

}  // namespace cotune
