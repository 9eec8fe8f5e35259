#include "ops/sparse_delta.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/sparse_delta.h"
#include "ops/backend.h"
#include "ops/low_rank_forms.h"

namespace cotune {
namespace {

kernels::SparseDelta kernel_delta(const SparseDelta& delta) {
  return {delta.in_features, delta.out_features, delta.column_offsets.const_data_ptr<int64_t>(),
          delta.row_indices.const_data_ptr<int32_t>()};
}

/// For the ATen path: each entry's index into a row-major [in, out] matrix.
at::Tensor flat_indices(const SparseDelta& delta) {
  const at::Tensor counts = delta.column_offsets.diff();
  const at::Tensor columns = at::repeat_interleave(counts, std::optional<int64_t>(delta.entry_count()));
  return delta.row_indices.to(at::kLong) * delta.out_features + columns;
}

at::Tensor dense_delta(const SparseDelta& delta, const at::Tensor& values) {
  at::Tensor dense = at::zeros({delta.in_features * delta.out_features}, values.options());
  dense.index_put_({flat_indices(delta)}, values);
  return dense.reshape({delta.in_features, delta.out_features});
}

}  // namespace

void add_sparse_delta(const SparseDelta& delta, const at::Tensor& values, const at::Tensor& x, at::Tensor& y) {
  if (use_kernels(x)) {
    kernels::sparse_delta_forward(kernel_dtype(x.scalar_type()), kernel_delta(delta), values.const_data_ptr<float>(),
                                  x.size(0), x.const_data_ptr(), x.stride(0), y.mutable_data_ptr(), y.stride(0));
    return;
  }
  const at::ScalarType wide = values.scalar_type();
  y.copy_(y.to(wide) + at::mm(x.to(wide), dense_delta(delta, values)));
}

void add_sparse_delta_input_gradient(const SparseDelta& delta, const at::Tensor& values, const at::Tensor& dy,
                                     at::Tensor& dx) {
  if (use_kernels(dy)) {
    kernels::sparse_delta_input_gradient(kernel_dtype(dy.scalar_type()), kernel_delta(delta),
                                         values.const_data_ptr<float>(), dy.size(0), dy.const_data_ptr(), dy.stride(0),
                                         dx.mutable_data_ptr(), dx.stride(0));
    return;
  }
  const at::ScalarType wide = values.scalar_type();
  dx.copy_(dx.to(wide) + at::mm(dy.to(wide), dense_delta(delta, values).t()));
}

void add_sparse_delta_value_gradient(const SparseDelta& delta, const at::Tensor& x, const at::Tensor& dy,
                                     at::Tensor& gradients) {
  if (use_kernels(x)) {
    kernels::sparse_delta_value_gradient(kernel_dtype(x.scalar_type()), kernel_delta(delta), x.size(0),
                                         x.const_data_ptr(), x.stride(0), dy.const_data_ptr(), dy.stride(0),
                                         gradients.mutable_data_ptr<float>());
    return;
  }
  const at::ScalarType wide = gradients.scalar_type();
  const at::Tensor dense = at::mm(x.to(wide).t(), dy.to(wide));
  gradients.add_(dense.reshape(-1).index_select(0, flat_indices(delta)));
}

namespace {

int64_t kept_entries(int64_t total, double density) {
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(density * static_cast<double>(total))), 1, total);
}

}  // namespace

SparseDelta select_entries_by_sorting(const at::Tensor& importance, double density) {
  const int64_t rows = importance.size(0), columns = importance.size(1);
  const int64_t keep = kept_entries(rows * columns, density);
  const auto order = std::get<1>(importance.abs().reshape(-1).sort(/*stable=*/true, -1, /*descending=*/true));
  const at::Tensor flat = order.narrow(0, 0, keep);
  const at::Tensor row = flat.div(columns, "floor"), column = flat.remainder(columns);
  const at::Tensor by_column = std::get<0>((column * rows + row).sort());
  const at::Tensor kept_columns = by_column.div(rows, "floor");
  at::Tensor offsets = at::zeros({columns + 1}, kept_columns.options());
  offsets.scatter_add_(0, kept_columns + 1, at::ones_like(kept_columns));
  return {rows, columns, offsets.cumsum(0), by_column.remainder(rows).to(at::kInt)};
}

SparseDelta select_entries(const at::Tensor& importance, double density) {
  if (!importance.is_cpu()) return select_entries_by_sorting(importance, density);
  const at::Tensor wide = importance.to(at::kDouble).abs().contiguous();
  const int64_t rows = wide.size(0), columns = wide.size(1), total = rows * columns;
  const int64_t keep = kept_entries(total, density);
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
