#include "base/sample_spread.h"

#include <algorithm>

namespace cotune {
namespace {

/// The value that a share of the samples lies below, between neighbours in proportion.
double quantile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

SampleSpread sample_spread(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const double median = quantile(samples, 0.5);
  return {median, median > 0 ? (quantile(samples, 0.75) - quantile(samples, 0.25)) / median : 0};
}

}  // namespace cotune
