#include "ops/select_entries.h"

#include <ATen/ATen.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace cotune {
namespace {

/// Keys of values order as their magnitudes do; that of a NaN is above all others.
template <typename Float>
using Key = std::conditional_t<sizeof(Float) == sizeof(uint32_t), uint32_t, uint64_t>;

template <typename Float>
Key<Float> key_of(Float value) {
  return std::bit_cast<Key<Float>>(std::abs(value));
}

/// Where the entries that are kept end: those with a greater key are, and of those with this one the first.
template <typename Float>
struct Cut {
  Key<Float> key = 0;
  int64_t tie_count = 0;  ///< kept of those with this key, at least one
};

/// Finds the key byte by byte from the highest, each by a count of the values that have the bytes before it: no memory of their size.
template <typename Float>
Cut<Float> cut_of(std::span<const Float> values, int64_t keep) {
  constexpr int byte_bits = 8;
  Cut<Float> cut{.tie_count = keep};
  for (int shift = byte_bits * (static_cast<int>(sizeof(Float)) - 1); shift >= 0; shift -= byte_bits) {
    std::array<int64_t, 1 << byte_bits> counts{};
    for (const Float value : values) {
      const Key<Float> key = key_of(value);
      if (((key ^ cut.key) >> shift >> byte_bits) == 0) ++counts[(key >> shift) & (counts.size() - 1)];
    }
    size_t byte = counts.size() - 1;
    while (counts[byte] < cut.tie_count) cut.tie_count -= counts[byte--];
    cut.key |= static_cast<Key<Float>>(byte) << shift;
  }
  return cut;
}

/// take(row, column) of every kept entry, by row and by column within a row.
template <typename Float, typename Take>
void for_each_kept(const at::Tensor& importance, const Cut<Float>& cut, Take take) {
  const int64_t rows = importance.size(0), columns = importance.size(1);
  const Float* value = importance.const_data_ptr<Float>();
  int64_t ties = 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const Key<Float> key = key_of(*value++);
      if (key > cut.key || (key == cut.key && ties++ < cut.tie_count)) take(row, column);
    }
  }
}

/// importance: contiguous, on the host.
template <typename Float>
SparseDelta largest_entries(const at::Tensor& importance, int64_t keep) {
  const int64_t rows = importance.size(0), columns = importance.size(1);
  const std::span<const Float> values(importance.const_data_ptr<Float>(), static_cast<size_t>(importance.numel()));
  const Cut<Float> cut = cut_of(values, keep);
  SparseDelta delta{rows, columns, at::zeros({columns + 1}, at::kLong), at::empty({keep}, at::kInt)};
  int64_t* offsets = delta.column_offsets.mutable_data_ptr<int64_t>();
  int32_t* indices = delta.row_indices.mutable_data_ptr<int32_t>();
  for_each_kept(importance, cut, [&](int64_t, int64_t column) { ++offsets[column + 1]; });
  for (int64_t column = 0; column < columns; ++column) offsets[column + 1] += offsets[column];
  std::vector<int64_t> next(offsets, offsets + columns);  // place of each column's next entry
  for_each_kept(importance, cut, [&](int64_t row, int64_t column) {
    indices[next[static_cast<size_t>(column)]++] = static_cast<int32_t>(row);
  });
  return delta;
}

}  // namespace

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
  if (importance.scalar_type() == at::kDouble) return largest_entries<double>(importance.contiguous(), keep);
  return largest_entries<float>(importance.to(at::kFloat).contiguous(), keep);
}

}  // namespace cotune
