#include "ops/sparse_delta.h"

#include <ATen/ATen.h>

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
  return {from.const_data_ptr(), from.stride(0), to.mutable_data_ptr(), to.stride(0), to.scalar_type() != from.scalar_type()};
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

}  // namespace cotune
