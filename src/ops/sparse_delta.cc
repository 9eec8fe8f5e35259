#include "ops/sparse_delta.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/sparse_delta.h"
#include "ops/backend.h"
#include "ops/call_counts.h"
#include "ops/low_rank_forms.h"
#include "ops/sparse_delta_gpu.h"
#include "ops/sparse_entries.h"

namespace cotune {
namespace {

kernels::SparseDelta kernel_delta(const SparseDelta& delta) {
  return {delta.in_features, delta.out_features, delta.column_offsets.const_data_ptr<int64_t>(),
          delta.row_indices.const_data_ptr<int32_t>()};
}

std::vector<kernels::SparseRows> kernel_groups(const std::vector<SparseDeltaGroup>& groups) {
  std::vector<kernels::SparseRows> rows;
  for (const SparseDeltaGroup& group : groups) {
    rows.push_back({kernel_delta(*group.delta), group.values.const_data_ptr<float>(), group.rows, group.from_column,
                    group.to_column});
  }
  return rows;
}

kernels::SparseOperands operands_of(const at::Tensor& from, at::Tensor& to) {
  return {from.const_data_ptr(), from.stride(0), to.mutable_data_ptr(), to.stride(0)};
}

}  // namespace

void add_sparse_deltas(const std::vector<SparseDeltaGroup>& groups, const at::Tensor& x, at::Tensor& y) {
  if (groups.empty()) return;
  count_adapter_call();
  if (!use_kernels(x)) {
    if (!add_sparse_deltas_on_gpu(groups, x, y)) add_in_entries(groups, x, y, EntryEnds::rows_to_columns);
    return;
  }
  kernels::sparse_delta_forward(kernel_dtype(x.scalar_type()), kernel_groups(groups), operands_of(x, y));
}

void add_sparse_delta_input_gradients(const std::vector<SparseDeltaGroup>& groups, const at::Tensor& dy, at::Tensor& dx) {
  if (groups.empty()) return;
  count_adapter_call();
  if (!use_kernels(dy)) {
    if (!add_sparse_delta_input_gradients_on_gpu(groups, dy, dx)) {
      add_in_entries(groups, dy, dx, EntryEnds::columns_to_rows);
    }
    return;
  }
  kernels::sparse_delta_input_gradient(kernel_dtype(dy.scalar_type()), kernel_groups(groups), operands_of(dy, dx));
}

void add_sparse_delta_value_gradients(const std::vector<SparseDeltaGradient>& groups, const at::Tensor& x,
                                      const at::Tensor& dy) {
  if (groups.empty()) return;
  count_adapter_call();
  if (!use_kernels(x)) {
    if (!add_sparse_delta_value_gradients_on_gpu(groups, x, dy)) add_value_gradients_in_entries(groups, x, dy);
    return;
  }
  std::vector<kernels::SparseValueGradient> sums;
  for (const SparseDeltaGradient& group : groups) {
    sums.push_back({kernel_delta(*group.delta), group.rows, group.dy_column, group.gradient.mutable_data_ptr<float>()});
  }
  kernels::sparse_delta_value_gradient(kernel_dtype(x.scalar_type()), sums, x.const_data_ptr(), x.stride(0),
                                       dy.const_data_ptr(), dy.stride(0));
}

const EntriesByRow& entries_by_row(const SparseDelta& delta) {
  EntriesByRow& by_row = delta.by_row;
  if (by_row.places.defined()) return by_row;
  const auto [rows, places] = delta.row_indices.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor numbers = at::arange(delta.out_features, rows.options());
  const at::Tensor columns = numbers.repeat_interleave(delta.column_offsets.diff(), 0, delta.entry_count());
  by_row.row_offsets = at::searchsorted(rows, at::arange(delta.in_features + 1, rows.options()));
  by_row.column_indices = columns.index_select(0, places);
  by_row.places = places.to(at::kInt);
  return by_row;
}

SparseDelta select_entries_by_sorting(const at::Tensor& importance, int64_t keep) {
  const int64_t rows = importance.size(0), columns = importance.size(1);
  const auto order = std::get<1>(importance.abs().reshape(-1).sort(/*stable=*/true, -1, /*descending=*/true));
  const at::Tensor flat = order.narrow(0, 0, keep);
  const at::Tensor row = flat.div(columns, "floor"), column = flat.remainder(columns);
  const at::Tensor by_column = std::get<0>((column * rows + row).sort());
  const at::Tensor kept_columns = by_column.div(rows, "floor");
  at::Tensor offsets = at::zeros({columns + 1}, kept_columns.options());
  offsets.scatter_add_(0, kept_columns + 1, at::ones_like(kept_columns));
  return {rows, columns, offsets.cumsum(0), by_column.remainder(rows).to(at::kInt)};
}

SparseDelta select_entries(const at::Tensor& importance, int64_t keep) {
  if (!importance.is_cpu()) return select_entries_by_sorting(importance, keep);
  const at::Tensor wide = importance.to(at::kDouble).abs().contiguous();
  const int64_t rows = wide.size(0), columns = wide.size(1), total = rows * columns;
  const double* magnitude = wide.const_data_ptr<double>();
  std::vector<int64_t> order(static_cast<size_t>(total));
  for (int64_t i = 0; i < total; ++i) order[static_cast<size_t>(i)] = i;
  std::nth_element(order.begin(), order.begin() + (keep - 1), order.end(), [magnitude](int64_t a, int64_t b) {
    return magnitude[a] != magnitude[b] ? magnitude[a] > magnitude[b] : a < b;
  });
  order.resize(static_cast<size_t>(keep));
  std::sort(order.begin(), order.end(), [columns](int64_t a, int64_t b) {
    return a % columns != b % columns ? a % columns < b % columns : a < b;
  });
  SparseDelta delta{rows, columns, at::zeros({columns + 1}, at::kLong), at::empty({keep}, at::kInt)};
  int64_t* offsets = delta.column_offsets.mutable_data_ptr<int64_t>();
  int32_t* indices = delta.row_indices.mutable_data_ptr<int32_t>();
  for (int64_t entry = 0; entry < keep; ++entry) {
    const int64_t flat = order[static_cast<size_t>(entry)];
    ++offsets[flat % columns + 1];
    indices[entry] = static_cast<int32_t>(flat / columns);
  }
  for (int64_t column = 0; column < columns; ++column) offsets[column + 1] += offsets[column];
  return delta;
}

}  // namespace cotune
