#include "ops/sparse_delta_gpu.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "ops/backend.h"

namespace cotune {
namespace {

constexpr int64_t largest_panel = int64_t{64} << 20;  // bytes: what a second-level cache of 40 or 50 MB nearly holds

int64_t element_bytes(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.element_size()); }

/// Memory for rows of so many columns: all of them, or the largest panel, but no fewer than `least`.
at::Tensor panel_for(int64_t rows, int64_t least, int64_t columns, const at::Tensor& like) {
  const int64_t row_bytes = columns * element_bytes(like);
  const int64_t most = std::max(least, largest_panel / std::max<int64_t>(1, row_bytes));
  return at::empty({std::clamp(rows, least, most) * row_bytes}, like.options().dtype(at::kByte));
}

int64_t whole_tiles(const RowRange& rows) {
  return (rows.count() + gpu_sparse_tile - 1) / gpu_sparse_tile * gpu_sparse_tile;
}

bool takes(const at::Tensor& matrix) { return matrix.stride(1) == 1; }
bool takes_values(const at::Tensor& values) { return values.scalar_type() == at::kFloat && values.is_contiguous(); }

enum class Direction { forward, backward };

bool add_products(const std::vector<SparseDeltaGroup>& groups, const at::Tensor& from, at::Tensor& to, Direction direction) {
  GpuKernels* kernels = gpu_kernels_for(from);
  const auto takes_group = [](const SparseDeltaGroup& group) { return takes_values(group.values); };
  if (kernels == nullptr || !takes(from) || !takes(to) || !std::ranges::all_of(groups, takes_group)) return false;
  const bool forward = direction == Direction::forward;
  std::vector<GpuSparseProduct> calls;
  GpuRows columns{from.size(1), 0};
  int64_t tile_rows = 0, entries = 0;
  for (const SparseDeltaGroup& group : groups) {
    const SparseDelta& delta = *group.delta;
    GpuSparseProduct call{.rows = {group.rows.begin, group.rows.end},
                          .offsets = delta.column_offsets.const_data_ptr<int64_t>(),
                          .indices = delta.row_indices.const_data_ptr<int32_t>(),
                          .values = group.values.const_data_ptr<float>(),
                          .entries = delta.entry_count(),
                          .outputs = forward ? delta.out_features : delta.in_features,
                          .from_column = group.from_column,
                          .to_column = group.to_column};
    if (!forward) {
      const EntriesByRow& by_row = entries_by_row(delta);
      call.offsets = by_row.row_offsets.const_data_ptr<int64_t>();
      call.indices = by_row.column_indices.const_data_ptr<int32_t>();
      call.places = by_row.places.const_data_ptr<int32_t>();
    }
    calls.push_back(call);
    const int64_t read = forward ? delta.in_features : delta.out_features;
    columns = {std::min(columns.begin, group.from_column), std::max(columns.end, group.from_column + read)};
    tile_rows += whole_tiles(group.rows);
    entries += delta.entry_count();
  }
  at::Tensor placed;
  if (!forward) {
    placed = at::empty({entries}, groups.front().values.options());
    float* next = placed.mutable_data_ptr<float>();
    for (GpuSparseProduct& call : calls) {
      call.placed = next;
      next += call.entries;
    }
  }
  const at::Tensor panel = panel_for(tile_rows, gpu_sparse_tile, columns.count(), from);
  kernels->sparse_products(gpu_type(from.scalar_type()), calls,
                           {.from = from.const_data_ptr(),
                            .from_stride = from.stride(0),
                            .from_columns = columns,
                            .to = to.mutable_data_ptr(),
                            .to_stride = to.stride(0),
                            .panel = panel.mutable_data_ptr(),
                            .panel_bytes = panel.numel()});
  return true;
}

}  // namespace

bool add_sparse_deltas_on_gpu(const std::vector<SparseDeltaGroup>& groups, const at::Tensor& x, at::Tensor& y) {
  if (x.scalar_type() == y.scalar_type()) return add_products(groups, x, y, Direction::forward);
  at::Tensor added = at::zeros(y.sizes(), x.options());  // the kernels read and write one dtype
  if (!add_products(groups, x, added, Direction::forward)) return false;
  y.add_(added);
  return true;
}

bool add_sparse_delta_input_gradients_on_gpu(const std::vector<SparseDeltaGroup>& groups, const at::Tensor& dy,
                                             at::Tensor& dx) {
  return add_products(groups, dy, dx, Direction::backward);
}

bool add_sparse_delta_value_gradients_on_gpu(const std::vector<SparseDeltaGradient>& groups, const at::Tensor& x,
                                             const at::Tensor& dy) {
  GpuKernels* kernels = gpu_kernels_for(x);
  const auto takes_group = [](const SparseDeltaGradient& group) { return takes_values(group.gradient); };
  if (kernels == nullptr || !takes(x) || !takes(dy) || !std::ranges::all_of(groups, takes_group)) return false;
  std::vector<GpuSparseGradient> calls;
  GpuRows columns{dy.size(1), 0};
  int64_t tile_rows = 0;
  for (const SparseDeltaGradient& group : groups) {
    const SparseDelta& delta = *group.delta;
    calls.push_back({.rows = {group.rows.begin, group.rows.end},
                     .offsets = delta.column_offsets.const_data_ptr<int64_t>(),
                     .indices = delta.row_indices.const_data_ptr<int32_t>(),
                     .entries = delta.entry_count(),
                     .outputs = delta.out_features,
                     .dy_column = group.dy_column,
                     .gradient = group.gradient.mutable_data_ptr<float>()});
    columns = {std::min(columns.begin, group.dy_column), std::max(columns.end, group.dy_column + delta.out_features)};
    tile_rows += whole_tiles(group.rows);
  }
  const at::Tensor panel = panel_for(tile_rows, gpu_sparse_slab, x.size(1) + columns.count(), x);
  kernels->sparse_value_gradients(gpu_type(x.scalar_type()), calls,
                                  {.x = x.const_data_ptr(),
                                   .x_stride = x.stride(0),
                                   .x_columns = x.size(1),
                                   .dy = dy.const_data_ptr(),
                                   .dy_stride = dy.stride(0),
                                   .dy_columns = columns,
                                   .panel = panel.mutable_data_ptr(),
                                   .panel_bytes = panel.numel()});
  return true;
}

}  // namespace cotune
