#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cotune {

/// A curve of any length in a bounded number of points: means of equally many consecutive values. When they are too many,
/// neighbours become one. Values that are not finite are left out.
class Trend {
 public:
  /// most: even, at least 2.
  explicit Trend(size_t most = 64) : most_(most) {}

  void add(double value);
  /// Oldest first; the last one may be of fewer values.
  std::vector<double> points() const;

 private:
  size_t most_;
  std::vector<double> means_;
  int64_t span_ = 1, count_ = 0;
  double sum_ = 0;
};

}  // namespace cotune
