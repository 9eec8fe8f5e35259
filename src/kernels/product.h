/// The product of a microbatch with a frozen matrix, every job's low-rank part inside: one pass over y.
///
/// BatchLoRA (mLoRA §3.3.1, Eq 2) and, in the backward direction with B = Wᵀ, its graph pruning (Eq 3, 4):
/// the low-rank parts enter the accumulators of the frozen product, so no separate full-size tensor exists.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/isa.h"
#include "kernels/matrix.h"

namespace cotune::kernels {

/// y[rows, column_begin .. column_end) += s · b, for the rows of one job.
struct LowRankTerm {
  RowRange rows;
  int64_t column_begin = 0;  ///< a multiple of 32
  int64_t column_end = 0;    ///< column_begin + b->n()
  /// [rows.count(), b->padded_k()] in the compute dtype; row 0 belongs to row rows.begin of y. Columns from
  /// b->k() on must be finite (they meet zeros).
  const void* s = nullptr;
  int64_t s_stride = 0;
  const PackedMatrix* b = nullptr;  ///< [rank, column_end - column_begin], compute dtype
};

struct ProductOptions {
  /// In any order; terms that share rows and columns are added in the order given.
  std::span<const LowRankTerm> terms = {};
  const void* bias = nullptr;      ///< [n], compute dtype
  const void* residual = nullptr;  ///< [rows, n], of y's dtype; may be y itself (same stride)
  int64_t residual_stride = 0;
  /// The rows that get the residual; disjoint, ascending. Others do not read it.
  std::span<const RowRange> residual_rows = {};
  bool wide = false;  ///< y and residual are f32, whatever b's dtype: a residual stream that is not rounded
};

/// y[rows, n] = round(x·B + Σ terms + bias + residual), f32 sums, rounded once (not at all where y is wide), in this order for each
/// element: k ascending, terms as given with their k ascending, bias, residual.
///
/// x [rows, b.k()], y [rows, b.n()] unless wide: b.dtype(), strides in elements, any alignment (fastest when y's rows
/// start on 64 bytes). x is not read outside its rows and columns; y must not overlap x. A row's bits depend
/// on that row of x, its terms, b and isa only: not on the rows beside it, its place in the call or the
/// number of threads. A NaN or Inf in x, s or b of one job stays in the rows of that job.
///
/// `isa` must be one that this machine has: avx2, avx512 or amx_f32 for f32, avx2_bf16, avx512_bf16 or amx_bf16 for bf16; amx_f32
/// takes matrices in parts, the others whole ones. Runs on the OpenMP threads. Allocates only when a thread's scratch
/// must grow.
void product(Isa isa, const void* x, int64_t x_stride, int64_t rows, const PackedMatrix& b, void* y,
             int64_t y_stride, const ProductOptions& options = {});

}  // namespace cotune::kernels
