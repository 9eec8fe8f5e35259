#pragma once

#include <cstdint>

namespace cotune {

/// How far predictions of rounds were off, of their seconds or of the bytes that they take: mean of |predicted − measured| / measured, over
/// those that ran since there was something to correct predictions by.
struct PredictionErrors {
  int64_t rounds = 0;
  double before_sum = 0, after_sum = 0;  ///< without and with what earlier rounds had taught
  double before() const { return rounds > 0 ? before_sum / static_cast<double>(rounds) : 0; }
  double after() const { return rounds > 0 ? after_sum / static_cast<double>(rounds) : 0; }
  bool operator==(const PredictionErrors&) const = default;
};

}  // namespace cotune
