#include "base/nonnegative_least_squares.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/error.h"

namespace cotune {
namespace {

using Vector = std::vector<long double>;

/// AᵀA·x = Aᵀb with unit columns.
struct NormalEquations {
  std::vector<Vector> gram;
  Vector target;
  Vector scale;  ///< length of each column
};

NormalEquations normal_equations(const std::vector<std::vector<double>>& rows, const std::vector<double>& b) {
  const size_t n = rows.empty() ? 0 : rows.front().size();
  NormalEquations equations{std::vector<Vector>(n, Vector(n, 0)), Vector(n, 0), Vector(n, 0)};
  for (const std::vector<double>& row : rows) {
    COTUNE_CHECK(row.size() == n);
    for (size_t i = 0; i < n; ++i) equations.scale[i] += static_cast<long double>(row[i]) * row[i];
  }
  for (long double& length : equations.scale) length = std::sqrt(length);
  for (size_t k = 0; k < rows.size(); ++k) {
    for (size_t i = 0; i < n; ++i) {
      if (equations.scale[i] == 0) continue;
      const long double value = rows[k][i] / equations.scale[i];
      equations.target[i] += value * b[k];
      for (size_t j = 0; j < n; ++j) {
        if (equations.scale[j] != 0) equations.gram[i][j] += value * rows[k][j] / equations.scale[j];
      }
    }
  }
  return equations;
}

/// Cholesky on a support; nothing where its columns are not independent.
std::optional<Vector> solve(const NormalEquations& equations, const std::vector<size_t>& support) {
  const size_t n = support.size();
  std::vector<Vector> lower(n, Vector(n, 0));
  Vector x(n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      long double value = equations.gram[support[i]][support[j]];
      for (size_t k = 0; k < j; ++k) value -= lower[i][k] * lower[j][k];
      if (i == j) {
        if (value < 1e-12L) return std::nullopt;
        lower[i][i] = std::sqrt(value);
      } else {
        lower[i][j] = value / lower[j][j];
      }
    }
    x[i] = equations.target[support[i]];
    for (size_t k = 0; k < i; ++k) x[i] -= lower[i][k] * x[k];
    x[i] /= lower[i][i];
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t k = i + 1; k < n; ++k) x[i] -= lower[k][i] * x[k];
    x[i] /= lower[i][i];
  }
  return x;
}

/// The column outside the support along which the error falls fastest; nothing where it falls along none.
std::optional<size_t> steepest(const NormalEquations& equations, const Vector& x, const std::vector<bool>& excluded) {
  std::optional<size_t> best;
  long double most = 1e-12L * *std::max_element(equations.target.begin(), equations.target.end());
  for (size_t i = 0; i < x.size(); ++i) {
    if (excluded[i] || equations.scale[i] == 0) continue;
    long double fall = equations.target[i];
    for (size_t j = 0; j < x.size(); ++j) fall -= equations.gram[i][j] * x[j];
    if (fall > most) {
      most = fall;
      best = i;
    }
  }
  return best;
}

}  // namespace

std::vector<double> nonnegative_least_squares(const std::vector<std::vector<double>>& rows, const std::vector<double>& b) {
  COTUNE_CHECK(rows.size() == b.size());
  const NormalEquations equations = normal_equations(rows, b);
  const size_t n = equations.scale.size();
  Vector x(n, 0);
  std::vector<size_t> support;
  std::vector<bool> excluded(n, false);  // in the support, dependent on it, or dropped as soon as it had entered
  std::optional<size_t> dropped;         // by the last step, which it had entered in: not at once again
  for (size_t steps = 0; n > 0 && steps < 10 * n; ++steps) {
    const std::optional<size_t> entering = steepest(equations, x, excluded);
    if (!entering) break;
    if (dropped) excluded[*std::exchange(dropped, std::nullopt)] = false;
    support.push_back(*entering);
    excluded[*entering] = true;
    std::optional<Vector> solution = solve(equations, support);
    if (!solution) {
      support.pop_back();
      continue;
    }
    // Back from a solution with negative parts to the last point before one of them crosses zero.
    while (std::any_of(solution->begin(), solution->end(), [](long double value) { return value <= 0; })) {
      long double step = 1;
      for (size_t i = 0; i < support.size(); ++i) {
        const long double from = x[support[i]], to = (*solution)[i];
        if (to <= 0 && from > to) step = std::min(step, from / (from - to));
      }
      std::vector<size_t> kept;
      for (size_t i = 0; i < support.size(); ++i) {
        long double& value = x[support[i]];
        value += step * ((*solution)[i] - value);
        if (value > 1e-15L) {
          kept.push_back(support[i]);
        } else {
          value = 0;
          excluded[support[i]] = false;
        }
      }
      if (std::ranges::find(kept, *entering) == kept.end()) {
        excluded[*entering] = true;
        dropped = entering;
      }
      support = std::move(kept);
      solution = solve(equations, support);
      if (!solution) break;
    }
    if (!solution) break;
    for (size_t i = 0; i < support.size(); ++i) x[support[i]] = (*solution)[i];
  }
  std::vector<double> result(n);
  for (size_t i = 0; i < n; ++i) {
    result[i] = equations.scale[i] == 0 ? 0 : static_cast<double>(x[i] / equations.scale[i]);
  }
  return result;
}

}  // namespace cotune
