/// Means over examples, and how far they may be off.
#pragma once

#include <cmath>
#include <limits>
#include <span>

namespace cotune {

struct Estimate {
  double value = std::numeric_limits<double>::quiet_NaN();
  double standard_error = std::numeric_limits<double>::quiet_NaN();  ///< NaN where there are fewer than two examples
};

/// The mean, and the sample standard deviation over √n: as lm-evaluation-harness has them.
Estimate mean_of(std::span<const double> values);

/// Mean of left − right over the same examples: what both have in common does not count as an error.
Estimate mean_difference(std::span<const double> left, std::span<const double> right);

/// Σ sums / Σ weights, a mean over tokens that come in examples; the error is that of a ratio of two sums over examples.
Estimate ratio_of(std::span<const double> sums, std::span<const double> weights);

/// The difference of two such ratios with the same weights.
Estimate ratio_difference(std::span<const double> left, std::span<const double> right, std::span<const double> weights);

/// exp of a mean loss: perplexity. The error is carried over to first order.
inline Estimate exponential_of(const Estimate& loss) { return {std::exp(loss.value), std::exp(loss.value) * loss.standard_error}; }

}  // namespace cotune
