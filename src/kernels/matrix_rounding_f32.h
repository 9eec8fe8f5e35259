/// Inside the f32 kernels: what becomes of a row of sums. Included by translation units compiled for AVX-512,
/// each of which gets its own copy.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/matrix_kernels.h"

namespace cotune::kernels {
namespace {

inline __mmask16 first_columns(int64_t count) {
  return count >= 16 ? 0xffff : count <= 0 ? 0 : static_cast<__mmask16>((1u << count) - 1);
}

/// y = scale · sum + bias + residual, or y += scale · sum, for up to 16 columns of one row from `column` of
/// the strip on.
inline void write_half_row(const Strip& strip, const Tile& tile, int64_t column, int row, __m512 sum) {
  const int64_t left = strip.columns - column;
  const __mmask16 columns = first_columns(left);
  sum = _mm512_mul_ps(sum, _mm512_set1_ps(strip.scale));
  float* y = reinterpret_cast<float*>(tile.y + row * strip.y_stride) + column;
  if (strip.accumulate) {
    _mm512_mask_storeu_ps(y, columns, _mm512_add_ps(_mm512_maskz_loadu_ps(columns, y), sum));
    return;
  }
  if (strip.bias != nullptr) {
    sum = _mm512_add_ps(sum,
                        _mm512_maskz_loadu_ps(columns, reinterpret_cast<const float*>(strip.bias) + column));
  }
  if (tile.residual != nullptr) {
    const auto* residual =
        reinterpret_cast<const float*>(tile.residual + row * strip.residual_stride) + column;
    sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(columns, residual));
  }
  if (left >= 16) {
    _mm512_storeu_ps(y, sum);
  } else if (strip.zero_tail) {
    _mm512_storeu_ps(y, _mm512_maskz_mov_ps(columns, sum));
  } else {
    _mm512_mask_storeu_ps(y, columns, sum);
  }
}

}  // namespace
}  // namespace cotune::kernels
