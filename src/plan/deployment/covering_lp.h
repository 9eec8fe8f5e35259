/// A small linear program whose columns arrive one after another, for column generation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cotune {

/// min Σ_k cost_k·x_k  subject to  Σ_k a_rk·x_k ≥ b_r,  x ≥ 0,  with a, b ≥ 0. Primal simplex on an explicit inverse: for
/// tens of rows and some hundreds of columns. What the columns cannot cover is paid for at `penalty` per unit.
class CoveringLp {
 public:
  CoveringLp(std::vector<double> demands, double penalty);

  /// Coefficients, one per row. Columns are counted from 0 in the order they arrive.
  void add_column(double cost, std::vector<double> coefficients);

  /// From the basis of the last call. Ends at the optimum, or after `pivots` of them.
  void solve(int pivots = 2000);

  /// Of the last solve: the price of each row (≥ 0 up to rounding), the value of each column, and the cost of them all.
  const std::vector<double>& duals() const { return duals_; }
  std::vector<double> values() const;
  double cost() const;

 private:
  struct Column {
    double cost;
    std::vector<double> coefficients;
  };

  void price();
  bool pivot(size_t entering);

  size_t rows_;
  size_t first_;                 ///< columns before it are the rows' penalties and surpluses
  std::vector<Column> columns_;
  std::vector<size_t> basis_;   ///< column of each row's basic variable
  std::vector<bool> is_basic_;
  std::vector<double> inverse_; ///< of the basis, [row][row]
  std::vector<double> basic_;   ///< values of the basic variables
  std::vector<double> duals_;
};

}  // namespace cotune
