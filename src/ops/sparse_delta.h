#pragma once

#include <ATen/core/Tensor.h>

namespace cotune {

/// A sparse addition Δ [in, out] to a frozen weight (diff pruning, Guo et al. 2021; MuxTune §3.2).
/// Entries are sorted by column, by row within a column. Values are the job's parameter.
struct SparseDelta {
  int64_t in_features = 0, out_features = 0;
  at::Tensor column_offsets;  ///< int64 [out + 1]
  at::Tensor row_indices;     ///< int32 [entries]
  int64_t entry_count() const { return row_indices.size(0); }
};

/// y += x·Δ, x [rows, in], y [rows, out] (slices with contiguous columns will do); f32 inside, rounded once.
void add_sparse_delta(const SparseDelta& delta, const at::Tensor& values, const at::Tensor& x, at::Tensor& y);
/// dx += dy·Δᵀ.
void add_sparse_delta_input_gradient(const SparseDelta& delta, const at::Tensor& values, const at::Tensor& dy,
                                     at::Tensor& dx);
/// gradients[e] += Σ over rows of x[row, row_index(e)]·dy[row, column(e)], accumulation dtype.
void add_sparse_delta_value_gradient(const SparseDelta& delta, const at::Tensor& x, const at::Tensor& dy,
                                     at::Tensor& gradients);

/// The k = ⌈density·numel⌉ entries of largest magnitude of `importance` [in, out], ties to the lower (row, column).
SparseDelta select_entries(const at::Tensor& importance, double density);
/// The same by tensor operations that stay on the device of `importance`: what select_entries does on a GPU.
SparseDelta select_entries_by_sorting(const at::Tensor& importance, double density);

}  // namespace cotune
