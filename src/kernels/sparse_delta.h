/// A sparse addition Δ to a frozen weight (diff pruning, Guo et al. 2021): y += x Δ and its gradients.
///
/// One call serves all jobs of a site. A group's tokens are taken in blocks of 64 from its first on, transposed to f32, so
/// that an entry is four vector multiply-adds. Results depend neither on the number of threads nor on the other groups; a
/// token's y and dx do not depend on the other tokens.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/matrix.h"

namespace cotune::kernels {

/// Δ [inputs, outputs], entries sorted by column and by row within a column.
/// Entries of column j: e in [column_offsets[j], column_offsets[j + 1]), at row row_indices[e].
struct SparseDelta {
  int64_t inputs = 0;
  int64_t outputs = 0;
  const int64_t* column_offsets = nullptr;  ///< [outputs + 1], from 0
  const int32_t* row_indices = nullptr;     ///< [entries]
};

/// One job's rows at one site: the deltas of a group read `from` and add to `to`.
struct SparseRows {
  SparseDelta delta;
  const float* values = nullptr;  ///< [entries]
  RowRange rows;                  ///< of `from` and `to`
  int64_t from_column = 0, to_column = 0;
};
struct SparseOperands {
  const void* from = nullptr;  ///< [rows, …], strides in elements
  int64_t from_stride = 0;
  void* to = nullptr;
  int64_t to_stride = 0;
  bool wide = false;           ///< `to` is f32, whatever the dtype of `from`: of the forward pass alone
};

/// y[rows, to_column …] += x[rows, from_column …]·Δ for every group; f32 inside, one rounding.
void sparse_delta_forward(DType dtype, std::span<const SparseRows> groups, const SparseOperands& operands);

/// dx[rows, to_column …] += dy[rows, from_column …]·Δᵀ for every group; f32 inside, one rounding each. Groups have the same
/// rows or disjoint ones; of the same rows they are added in the order given.
void sparse_delta_input_gradient(DType dtype, std::span<const SparseRows> groups, const SparseOperands& operands);

/// One atom's part in the gradient of a site's values.
struct SparseValueGradient {
  SparseDelta delta;
  RowRange rows;
  int64_t dy_column = 0;
  float* gradient = nullptr;  ///< [entries]
};

/// gradient[e] += Σ_t x[t, row(e)] · dy[t, dy_column + column(e)] over the rows of every group, f32, in a fixed order; groups
/// of one gradient in the order given. x [rows, inputs].
void sparse_delta_value_gradient(DType dtype, std::span<const SparseValueGradient> groups, const void* x, int64_t x_stride,
                                 const void* dy, int64_t dy_stride);

}  // namespace cotune::kernels
