#include "watch/trend.h"

#include <cmath>

namespace cotune {

void Trend::add(double value) {
  if (!std::isfinite(value)) return;
  sum_ += value;
  if (++count_ < span_) return;
  means_.push_back(sum_ / static_cast<double>(count_));
  sum_ = 0;
  count_ = 0;
  if (means_.size() < most_) return;
  for (size_t i = 0; i < means_.size() / 2; ++i) means_[i] = (means_[2 * i] + means_[2 * i + 1]) / 2;
  means_.resize(means_.size() / 2);
  span_ *= 2;
}

std::vector<double> Trend::points() const {
  std::vector<double> points = means_;
  if (count_ > 0) points.push_back(sum_ / static_cast<double>(count_));
  return points;
}

}  // namespace cotune
