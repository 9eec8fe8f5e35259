#include "schedule/memory_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

namespace cotune {
namespace {

constexpr int terms = 3;
using Vector = std::array<long double, terms>;

struct NormalEquations {
  std::array<Vector, terms> gram{};  // of columns scaled to unit length
  Vector target{};
  Vector scale{};                    // length of each column
};

std::array<long double, terms> columns_of(const MemorySample& sample) { return {1.0L, sample.x1, sample.x2}; }

NormalEquations normal_equations(const std::deque<MemorySample>& samples) {
  NormalEquations equations;
  for (const MemorySample& sample : samples) {
    const auto columns = columns_of(sample);
    for (int i = 0; i < terms; ++i) {
      for (int j = 0; j < terms; ++j) equations.gram[i][j] += columns[i] * columns[j];
      equations.target[i] += columns[i] * sample.bytes;
    }
  }
  for (int i = 0; i < terms; ++i) equations.scale[i] = std::sqrt(equations.gram[i][i]);
  for (int i = 0; i < terms; ++i) {
    if (equations.scale[i] == 0) continue;
    equations.target[i] /= equations.scale[i];
    for (int j = 0; j < terms; ++j) {
      if (equations.scale[j] != 0) equations.gram[i][j] /= equations.scale[i] * equations.scale[j];
    }
  }
  return equations;
}

/// Cholesky on the columns of a support; nothing where they are not independent.
std::optional<Vector> solve(const NormalEquations& equations, const std::vector<int>& support) {
  const int n = static_cast<int>(support.size());
  std::array<Vector, terms> lower{};
  Vector y{}, solution{};
  for (int i = 0; i < n; ++i) {
    if (equations.scale[support[i]] == 0) return std::nullopt;
    for (int j = 0; j <= i; ++j) {
      long double value = equations.gram[support[i]][support[j]];
      for (int k = 0; k < j; ++k) value -= lower[i][k] * lower[j][k];
      if (i == j) {
        if (value < 1e-14L) return std::nullopt;
        lower[i][i] = std::sqrt(value);
      } else {
        lower[i][j] = value / lower[j][j];
      }
    }
    long double value = equations.target[support[i]];
    for (int k = 0; k < i; ++k) value -= lower[i][k] * y[k];
    y[i] = value / lower[i][i];
  }
  std::array<long double, terms> x{};
  for (int i = n; i-- > 0;) {
    long double value = y[i];
    for (int k = i + 1; k < n; ++k) value -= lower[k][i] * x[k];
    x[i] = value / lower[i][i];
    solution[support[i]] = x[i] / equations.scale[support[i]];
  }
  return solution;
}

long double squared_error(const std::deque<MemorySample>& samples, const Vector& beta) {
  long double sum = 0;
  for (const MemorySample& sample : samples) {
    const long double error = beta[0] + beta[1] * sample.x1 + beta[2] * sample.x2 - sample.bytes;
    sum += error * error;
  }
  return sum;
}

}  // namespace

void MemoryFit::add(const MemorySample& sample) {
  samples_.push_back(sample);
  if (samples_.size() > max_samples) samples_.pop_front();
}

MemoryFitResult MemoryFit::fit() const {
  MemoryFitResult result;
  const NormalEquations equations = normal_equations(samples_);
  Vector best{};
  long double best_error = squared_error(samples_, best);
  for (int mask = 1; mask < 1 << terms; ++mask) {
    std::vector<int> support;
    for (int i = 0; i < terms; ++i) {
      if (mask >> i & 1) support.push_back(i);
    }
    const std::optional<Vector> solution = solve(equations, support);
    if (!solution || *std::min_element(solution->begin(), solution->end()) < 0) continue;
    const long double error = squared_error(samples_, *solution);
    if (error < best_error) {
      best = *solution;
      best_error = error;
    }
  }
  for (int i = 0; i < terms; ++i) result.beta[static_cast<size_t>(i)] = static_cast<double>(best[static_cast<size_t>(i)]);
  for (const MemorySample& sample : samples_) {
    const double residual = sample.bytes - result.predict(sample.x1, sample.x2);
    result.max_residual = std::max(result.max_residual, std::abs(residual));
    result.max_underestimate = std::max(result.max_underestimate, residual);
    if (sample.bytes > 0) {
      result.mean_relative_error += std::abs(residual) / sample.bytes / static_cast<double>(samples_.size());
    }
  }
  return result;
}

}  // namespace cotune
