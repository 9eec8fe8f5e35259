#include "schedule/memory/memory_fit.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/nonnegative_least_squares.h"

namespace cotune {

void MemoryFit::add(const FittedSample& sample) {
  samples_.push_back(sample);
  if (samples_.size() > max_samples) samples_.pop_front();
}

MemoryFitResult MemoryFit::fit() const {
  MemoryFitResult result;
  if (samples_.empty()) return result;
  std::vector<std::vector<double>> rows;
  std::vector<double> bytes;
  for (const FittedSample& sample : samples_) {
    rows.push_back({1, sample.x1, sample.x2});
    bytes.push_back(sample.bytes);
  }
  const std::vector<double> beta = nonnegative_least_squares(rows, bytes);
  std::copy(beta.begin(), beta.end(), result.beta.begin());
  for (const FittedSample& sample : samples_) {
    const double residual = sample.bytes - result.predict(sample.x1, sample.x2);
    result.max_underestimate = std::max(result.max_underestimate, residual);
    if (sample.bytes > 0) {
      result.mean_relative_error += std::abs(residual) / sample.bytes / static_cast<double>(samples_.size());
    }
  }
  return result;
}

}  // namespace cotune
