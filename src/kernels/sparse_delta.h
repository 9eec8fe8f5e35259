/// A sparse addition Δ to a frozen weight (diff pruning, Guo et al. 2021): y += x Δ and its gradients.
///
/// Tokens are taken in blocks of 64 from the start of the call, transposed to f32, so that an entry is four vector
/// multiply-adds. Results do not depend on the number of threads; a token's y and dx do not depend on the other tokens.
#pragma once

#include <cstdint>

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

/// y [tokens, outputs] += x [tokens, inputs] · Δ with `values` [entries] f32. f32 inside, one rounding. Strides in elements.
void sparse_delta_forward(DType dtype, const SparseDelta& delta, const float* values, int64_t tokens, const void* x,
                          int64_t x_stride, void* y, int64_t y_stride);

/// dx [tokens, inputs] += dy [tokens, outputs] · Δᵀ. f32 inside, one rounding.
void sparse_delta_input_gradient(DType dtype, const SparseDelta& delta, const float* values, int64_t tokens,
                                 const void* dy, int64_t dy_stride, void* dx, int64_t dx_stride);

/// value_gradients[e] += Σ_t x[t, row(e)] · dy[t, column(e)], f32, over the tokens in a fixed order.
void sparse_delta_value_gradient(DType dtype, const SparseDelta& delta, int64_t tokens, const void* x, int64_t x_stride,
                                 const void* dy, int64_t dy_stride, float* value_gradients);

}  // namespace cotune::kernels
