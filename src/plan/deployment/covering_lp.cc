#include "plan/deployment/covering_lp.h"

#include <algorithm>

namespace cotune {
namespace {

constexpr double tiny = 1e-9;

}  // namespace

CoveringLp::CoveringLp(std::vector<double> demands, double penalty)
    : rows_(demands.size()), first_(2 * rows_), inverse_(rows_ * rows_, 0), basic_(std::move(demands)), duals_(rows_, 0) {
  for (const double sign : {1.0, -1.0}) {
    for (size_t r = 0; r < rows_; ++r) {
      std::vector<double> coefficients(rows_, 0);
      coefficients[r] = sign;
      columns_.push_back({sign > 0 ? penalty : 0.0, std::move(coefficients)});
    }
  }
  is_basic_.assign(first_, false);
  for (size_t r = 0; r < rows_; ++r) {
    basis_.push_back(r);
    is_basic_[r] = true;
    inverse_[r * rows_ + r] = 1;
  }
}

void CoveringLp::add_column(double cost, std::vector<double> coefficients) {
  columns_.push_back({cost, std::move(coefficients)});
  is_basic_.push_back(false);
}

/// duals = costs of the basis · inverse.
void CoveringLp::price() {
  for (size_t r = 0; r < rows_; ++r) {
    double sum = 0;
    for (size_t k = 0; k < rows_; ++k) sum += columns_[basis_[k]].cost * inverse_[k * rows_ + r];
    duals_[r] = sum;
  }
}

bool CoveringLp::pivot(size_t entering) {
  const std::vector<double>& coefficients = columns_[entering].coefficients;
  std::vector<double> direction(rows_, 0);
  for (size_t k = 0; k < rows_; ++k) {
    double sum = 0;
    for (size_t r = 0; r < rows_; ++r) sum += inverse_[k * rows_ + r] * coefficients[r];
    direction[k] = sum;
  }
  size_t leaving = rows_;
  double step = 0;
  for (size_t k = 0; k < rows_; ++k) {
    if (direction[k] <= tiny) continue;
    const double ratio = basic_[k] / direction[k];
    const bool is_tie = leaving < rows_ && ratio <= step + tiny && basis_[k] < basis_[leaving];
    if (leaving == rows_ || ratio < step - tiny || is_tie) leaving = k, step = ratio;
  }
  if (leaving == rows_) return false;
  const double divisor = direction[leaving];
  for (size_t r = 0; r < rows_; ++r) inverse_[leaving * rows_ + r] /= divisor;
  basic_[leaving] /= divisor;
  for (size_t k = 0; k < rows_; ++k) {
    if (k == leaving || direction[k] == 0) continue;
    for (size_t r = 0; r < rows_; ++r) inverse_[k * rows_ + r] -= direction[k] * inverse_[leaving * rows_ + r];
    basic_[k] = std::max(0.0, basic_[k] - direction[k] * basic_[leaving]);
  }
  is_basic_[basis_[leaving]] = false;
  is_basic_[entering] = true;
  basis_[leaving] = entering;
  return true;
}

void CoveringLp::solve(int pivots) {
  for (int count = 0;; ++count) {
    price();
    if (count == pivots) return;
    size_t entering = columns_.size();
    double least = -tiny;
    for (size_t k = 0; k < columns_.size(); ++k) {
      if (is_basic_[k]) continue;
      double reduced = columns_[k].cost;
      for (size_t r = 0; r < rows_; ++r) reduced -= duals_[r] * columns_[k].coefficients[r];
      if (reduced >= least) continue;
      least = reduced;
      entering = k;
      if (count > pivots / 2) break;  // Bland's rule, against cycles
    }
    if (entering == columns_.size() || !pivot(entering)) return;
  }
}

std::vector<double> CoveringLp::values() const {
  std::vector<double> values(columns_.size() - first_, 0);
  for (size_t k = 0; k < rows_; ++k) {
    if (basis_[k] >= first_) values[basis_[k] - first_] = basic_[k];
  }
  return values;
}

double CoveringLp::cost() const {
  double sum = 0;
  for (size_t k = 0; k < rows_; ++k) sum += columns_[basis_[k]].cost * basic_[k];
  return sum;
}

}  // namespace cotune
