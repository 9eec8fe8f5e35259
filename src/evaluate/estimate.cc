#include "evaluate/estimate.h"

#include <numeric>
#include <vector>

#include "base/error.h"

namespace cotune {
namespace {

std::vector<double> differences(std::span<const double> left, std::span<const double> right) {
  COTUNE_CHECK(left.size() == right.size());
  std::vector<double> result(left.size());
  for (size_t i = 0; i < left.size(); ++i) result[i] = left[i] - right[i];
  return result;
}

}  // namespace

Estimate mean_of(std::span<const double> values) { return ratio_of(values, std::vector<double>(values.size(), 1)); }

Estimate mean_difference(std::span<const double> left, std::span<const double> right) { return mean_of(differences(left, right)); }

Estimate ratio_of(std::span<const double> sums, std::span<const double> weights) {
  COTUNE_CHECK(sums.size() == weights.size());
  const double weight = std::accumulate(weights.begin(), weights.end(), 0.0);
  Estimate result;
  if (weight == 0) return result;
  result.value = std::accumulate(sums.begin(), sums.end(), 0.0) / weight;
  if (sums.size() < 2) return result;
  double squares = 0;
  for (size_t i = 0; i < sums.size(); ++i) squares += std::pow(sums[i] - result.value * weights[i], 2);
  const auto count = static_cast<double>(sums.size());
  result.standard_error = std::sqrt(squares * count / (count - 1)) / weight;
  return result;
}

Estimate ratio_difference(std::span<const double> left, std::span<const double> right, std::span<const double> weights) {
  return ratio_of(differences(left, right), weights);
}

}  // namespace cotune
