/// Inside the products: where the rows of y are cut into tiles, and the low-rank terms of each.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/matrix_kernels.h"
#include "kernels/product.h"

namespace cotune::kernels {

/// Rows [row, row + height) of y.
struct RowTile {
  int64_t row;
  int height;
  bool residual;                   ///< these rows get it
  int64_t first_term, term_count;  ///< in RowPlan::terms
};

/// Where the rows of y are cut: never across the border of a term or of the rows with a residual. Made anew for each product, in the memory
/// of the one before.
struct RowPlan {
  std::vector<RowTile> tiles;
  std::vector<TileTerm> terms;  ///< tile by tile; left operands that are converted lie in this thread's scratch

  void build(int64_t rows, const ProductOptions& options, const MatrixKernels& kernels);

 private:
  struct LeftRows {
    const char* data;
    int64_t stride;  // bytes
  };
  static LeftRows left_rows(const LowRankTerm& term, const MatrixKernels& kernels, char*& scratch);
  std::vector<int64_t> borders_;
  std::vector<LeftRows> term_rows_;
};

}  // namespace cotune::kernels
