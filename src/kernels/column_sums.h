/// Sums over the rows of an atom: the gradients of biases, of all jobs of a site in one call.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/matrix.h"

namespace cotune::kernels {

/// One atom's part: gradient[j] += Σ_t right[t, j].
struct ColumnSum {
  const void* right = nullptr;  ///< [rows, columns], the dtype of the call
  int64_t stride = 0;           ///< elements
  int64_t rows = 0;
  int64_t columns = 0;
  float* gradient = nullptr;  ///< [columns]
};

/// Adds every sum to its gradient. A sum is formed from zero, rows ascending, in f32, and then added; sums of
/// one gradient, which follow one another, in the order given. Bits do not depend on threads or on other
/// sums.
void column_sums(DType dtype, std::span<const ColumnSum> sums);

}  // namespace cotune::kernels
