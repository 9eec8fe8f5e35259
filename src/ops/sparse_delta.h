#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/matrix.h"

namespace cotune {

using kernels::RowRange;

/// The entries once more, sorted by row and by column within a row.
struct EntriesByRow {
  at::Tensor row_offsets;     ///< int64 [in + 1]
  at::Tensor column_indices;  ///< int32 [entries]
  at::Tensor places;          ///< int32 [entries]: in the order of SparseDelta
};

/// A sparse addition Δ [in, out] to a frozen weight (diff pruning, Guo et al. 2021; MuxTune §3.2).
/// Entries are sorted by column, by row within a column. Values are the job's parameter.
struct SparseDelta {
  int64_t in_features = 0, out_features = 0;
  at::Tensor column_offsets;  ///< int64 [out + 1]
  at::Tensor row_indices;     ///< int32 [entries]
  /// Undefined until the first input gradient by a GPU's kernels, which need it: 8 bytes an entry beside the 4 of row_indices, on
  /// the device, and kept as long as the entries are. No operator makes it on the CPU.
  mutable EntriesByRow by_row = {};
  int64_t entry_count() const { return row_indices.numel(); }
};

/// delta.by_row, made where it is not there yet by tensor operations that do not wait for the device. Calls with one delta
/// come from one thread.
const EntriesByRow& entries_by_row(const SparseDelta& delta);

/// One job's part of a grouped product: what is read and what is added to, of its rows.
struct SparseDeltaGroup {
  const SparseDelta* delta = nullptr;
  at::Tensor values;  ///< [entries] accumulation dtype
  RowRange rows;
  int64_t from_column = 0, to_column = 0;  ///< of the matrix that is read, and of the one that is added to
};

/// y[rows, to_column …] += x[rows, from_column …]·Δ of every job in one call; f32 inside, rounded once. x, y [tokens, …] with contiguous
/// columns; y of x's dtype or the accumulation dtype.
void add_sparse_deltas(const std::vector<SparseDeltaGroup>& groups, const at::Tensor& x, at::Tensor& y);
/// dx[rows, to_column …] += dy[rows, from_column …]·Δᵀ. Groups of the same rows are added in the order given (by a GPU's
/// kernels before the one rounding, elsewhere rounded each).
void add_sparse_delta_input_gradients(const std::vector<SparseDeltaGroup>& groups, const at::Tensor& dy, at::Tensor& dx);

/// One atom's part of the gradient of a site's values.
struct SparseDeltaGradient {
  const SparseDelta* delta = nullptr;
  RowRange rows;
  int64_t dy_column = 0;
  at::Tensor gradient;  ///< [entries] accumulation dtype
};
/// gradient[e] += Σ over rows of x[row, row_index(e)]·dy[row, dy_column + column(e)] of every group in one call. Nothing of
/// the target weight's size is formed on any path: ATen gathers rows of xᵀ and dyᵀ for a bounded number of entries at a time; a
/// GPU's kernels take up to 64 MiB (512 rows of x and dy where these are more) for rows transposed.
void add_sparse_delta_value_gradients(const std::vector<SparseDeltaGradient>& groups, const at::Tensor& x,
                                      const at::Tensor& dy);

}  // namespace cotune
