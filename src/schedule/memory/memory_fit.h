/// Memory learned while running (mLoRA §3.4, Eq. 5):  bytes = β₀ + β₁·x₁ + β₂·x₂,  every β ≥ 0.
/// The paper's x₁ is batch · length and x₂ batch · length²; any two growing measures will do (tokens, attention pairs).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>

namespace cotune {

struct FittedSample {
  double x1 = 0;
  double x2 = 0;
  double bytes = 0;
};

struct MemoryFitResult {
  std::array<double, 3> beta{};      ///< each ≥ 0
  double max_underestimate = 0;      ///< largest bytes − predicted, at least 0: the margin to add (a mean error such as
                                     ///< the paper's 0.25 % bounds nothing)
  double mean_relative_error = 0;    ///< the paper's MAPE, as a fraction

  double predict(double x1, double x2) const { return beta[0] + beta[1] * x1 + beta[2] * x2; }
  double predict_with_margin(double x1, double x2) const { return predict(x1, x2) + max_underestimate; }
};

class MemoryFit {
 public:
  static constexpr size_t max_samples = 1000;  ///< the newest ones count

  void add(const FittedSample& sample);
  size_t sample_count() const { return samples_.size(); }

  /// nonnegative_least_squares over the samples. Columns that the samples cannot tell apart (few samples, one length)
  /// leave only supports without them: then the fit holds near the samples alone. Without samples all β are 0.
  MemoryFitResult fit() const;

 private:
  std::deque<FittedSample> samples_;
};

}  // namespace cotune
