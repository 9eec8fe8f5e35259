#pragma once

#include <vector>

namespace cotune {

/// What repeated measurements of one thing say.
struct SampleSpread {
  double median = 0;
  double spread = 0;  ///< upper quartile minus lower quartile, over the median; 0 where that is 0
};

/// Quantiles lie between neighbouring samples in proportion. samples: at least one, in any order.
SampleSpread sample_spread(std::vector<double> samples);

}  // namespace cotune
