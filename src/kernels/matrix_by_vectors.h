/// Inside matrix kernels that are written in kernels/vectors.h: the arrangement of operands, of which bf16 is widened on the left, and what becomes
/// of a row of sums. Each translation unit gets its own copy.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/matrix_kernels.h"
#include "kernels/vectors.h"

namespace cotune::kernels {
namespace {

constexpr int64_t half_columns = 16;
constexpr int64_t half_bytes = 64;  // of a row of lanes of a panel: f32, or pairs of bf16
constexpr int64_t lane_row_bytes = 128;

COTUNE_VECTORS_BEGIN

/// What becomes of the sums of up to 16 columns of one row, from `column` of the strip on.
template <typename T, typename L>
inline void write_lanes(const Strip& strip, const Tile& tile, int64_t column, int row, Vector sum, L lanes, bool whole) {
  char* y = tile.y + row * strip.y_stride;
  if (strip.scale != 1) sum = sum * splat(strip.scale);
  if (strip.accumulate) {
    float* target = reinterpret_cast<float*>(y) + column;
    store(target, load(target, lanes) + sum, lanes);
    return;
  }
  if (strip.bias != nullptr) sum = sum + load(reinterpret_cast<const T*>(strip.bias) + column, lanes);
  const char* residual = tile.residual == nullptr ? nullptr : tile.residual + row * strip.residual_stride;
  const auto write = [&](auto* target) {
    using Y = std::remove_pointer_t<decltype(target)>;
    if (residual != nullptr) sum = sum + load(reinterpret_cast<const Y*>(residual) + column, lanes);
    if (whole) {
      store(target + column, keep(lanes, sum));
    } else {
      store(target + column, sum, lanes);
    }
  };
  if (strip.wide) {
    write(reinterpret_cast<float*>(y));
  } else {
    write(reinterpret_cast<T*>(y));
  }
}

template <typename T>
inline void write_half_row(const Strip& strip, const Tile& tile, int64_t column, int row, Vector sum) {
  const int64_t left = strip.columns - column;
  if (left >= half_columns) {
    write_lanes<T>(strip, tile, column, row, sum, AllLanes{}, false);
  } else if (left > 0 || (strip.zero_tail && !strip.accumulate)) {
    write_lanes<T>(strip, tile, column, row, sum, first_lanes(left), strip.zero_tail);
  }
}

[[maybe_unused]] void pack_right_bf16(const char* right, int64_t stride_bytes, int64_t rows, int64_t padded_rows, int64_t columns, char* panels) {
  for (int64_t column = 0; column < columns; column += 32, panels += padded_rows / 2 * lane_row_bytes) {
    for (int64_t row = 0; row < padded_rows; row += 2) {
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t first = column + half * half_columns;
        const auto halves = [&](int64_t index) {
          if (index >= rows) return no_words();
          return load_halves(reinterpret_cast<const uint16_t*>(right + index * stride_bytes) + first, first_lanes(columns - first));
        };
        store_words(panels + row / 2 * lane_row_bytes + half * half_bytes, halves(row) | (halves(row + 1) << 16));
      }
    }
  }
}

/// Widened where it is bf16.
template <typename T>
void transpose_left(const char* left, int64_t stride_bytes, int64_t rows, int64_t padded_rows, int64_t columns, char* target,
                    int64_t target_stride) {
  for (int64_t column = 0; column < columns; column += lane_count) {
    const FirstLanes lanes = first_lanes(columns - column);
    for (int64_t row = 0; row < padded_rows; row += lane_count) {
      Words block[16];
      for (int64_t i = 0; i < lane_count; ++i) {
        const auto* from = reinterpret_cast<const T*>(left + (row + i) * stride_bytes) + column;
        block[i] = row + i < rows ? as_words(load(from, lanes)) : no_words();
      }
      transpose(block);
      for (int64_t i = 0; i < std::min(lane_count, columns - column); ++i) {
        auto* to = reinterpret_cast<float*>(target + (column + i) * target_stride) + row;
        store(to, as_vector(block[i]), first_lanes(padded_rows - row));
      }
    }
  }
}

/// A row of bf16 as f32, filled up with zeros.
[[maybe_unused]] void widen_row(const char* x, int64_t k, char* target) {
  const auto* from = reinterpret_cast<const uint16_t*>(x);
  auto* to = reinterpret_cast<float*>(target);
  for_lanes(k, [&](int64_t i, auto lanes) { store(to + i, load(from + i, lanes)); });
  for (int64_t i = (k + lane_count - 1) / lane_count * lane_count; i < padded_depth(k, 32); i += lane_count) store(to + i, no_values());
}

COTUNE_VECTORS_END

}  // namespace
}  // namespace cotune::kernels
