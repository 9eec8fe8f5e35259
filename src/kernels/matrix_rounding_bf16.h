/// Inside the bf16 kernels: what becomes of a row of sums, and the arrangement of operands. Included by the
/// translation units that are compiled for AVX-512 BF16, each of which gets its own copy.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/matrix_kernels.h"
#include "kernels/matrix_transpose.h"

namespace cotune::kernels {
namespace {

inline __m512 widen_bf16(__m256i values) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

inline __mmask32 first_columns(int64_t count) {
  return count >= 32 ? ~__mmask32{0} : (__mmask32{1} << count) - 1;
}

/// y (f32) += scale · sum, for 32 columns of one row.
inline void add_row(const Strip& strip, const Tile& tile, int64_t panel, int row, __m512 low, __m512 high) {
  const __m512 scale = _mm512_set1_ps(strip.scale);
  low = _mm512_mul_ps(low, scale);
  high = _mm512_mul_ps(high, scale);
  float* y = reinterpret_cast<float*>(tile.y + row * strip.y_stride) + panel * 32;
  const __mmask32 columns = first_columns(strip.columns - panel * 32);
  const auto low_columns = static_cast<__mmask16>(columns);
  const auto high_columns = static_cast<__mmask16>(columns >> 16);
  _mm512_mask_storeu_ps(y, low_columns, _mm512_add_ps(_mm512_maskz_loadu_ps(low_columns, y), low));
  _mm512_mask_storeu_ps(y + 16, high_columns,
                        _mm512_add_ps(_mm512_maskz_loadu_ps(high_columns, y + 16), high));
}

/// y (f32) = low | high + residual (f32), for up to 32 columns of one row.
inline void write_wide_row(const Strip& strip, const Tile& tile, int64_t panel, int row, __mmask32 columns, __m512 low, __m512 high) {
  const auto low_columns = static_cast<__mmask16>(columns);
  const auto high_columns = static_cast<__mmask16>(columns >> 16);
  if (tile.residual != nullptr) {
    const float* residual = reinterpret_cast<const float*>(tile.residual + row * strip.residual_stride) + panel * 32;
    low = _mm512_add_ps(low, _mm512_maskz_loadu_ps(low_columns, residual));
    high = _mm512_add_ps(high, _mm512_maskz_loadu_ps(high_columns, residual + 16));
  }
  float* y = reinterpret_cast<float*>(tile.y + row * strip.y_stride) + panel * 32;
  _mm512_mask_storeu_ps(y, low_columns, low);
  _mm512_mask_storeu_ps(y + 16, high_columns, high);
}

/// y = round(scale · sum + bias + residual), for up to 32 columns of one row.
__attribute__((noinline)) void write_row_in_full(const Strip& strip, const Tile& tile, int64_t panel, int row,
                                                 __m512 low, __m512 high) {
  const int64_t left = strip.columns - panel * 32;
  const __mmask32 columns = first_columns(left);
  const __m512 scale = _mm512_set1_ps(strip.scale);
  low = _mm512_mul_ps(low, scale);
  high = _mm512_mul_ps(high, scale);
  if (strip.bias != nullptr) {
    const __m512i bias = _mm512_maskz_loadu_epi16(columns, strip.bias + panel * 64);
    low = _mm512_add_ps(low, widen_bf16(_mm512_castsi512_si256(bias)));
    high = _mm512_add_ps(high, widen_bf16(_mm512_extracti64x4_epi64(bias, 1)));
  }
  if (strip.wide) {
    write_wide_row(strip, tile, panel, row, columns, low, high);
    return;
  }
  if (tile.residual != nullptr) {
    const __m512i residual =
        _mm512_maskz_loadu_epi16(columns, tile.residual + row * strip.residual_stride + panel * 64);
    low = _mm512_add_ps(low, widen_bf16(_mm512_castsi512_si256(residual)));
    high = _mm512_add_ps(high, widen_bf16(_mm512_extracti64x4_epi64(residual, 1)));
  }
  const __m512i rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  char* y = tile.y + row * strip.y_stride + panel * 64;
  if (left >= 32) {
    _mm512_storeu_si512(y, rounded);
  } else if (strip.zero_tail) {
    _mm512_storeu_si512(y, _mm512_maskz_mov_epi16(columns, rounded));
  } else {
    _mm512_mask_storeu_epi16(y, columns, rounded);
  }
}

/// Whether the rows of a strip need no scale and no bias, and are rounded.
inline bool is_plain(const Strip& strip) {
  return strip.bias == nullptr && strip.scale == 1 && !strip.wide;
}

/// The last step of 32 columns of one row; `plain` is is_plain(strip).
inline void write_row_bf16(const Strip& strip, bool plain, const Tile& tile, int64_t panel, int row,
                           __m512 low, __m512 high) {
  if (strip.accumulate) {
    add_row(strip, tile, panel, row, low, high);
    return;
  }
  if (!plain || strip.columns < (panel + 1) * 32) {
    write_row_in_full(strip, tile, panel, row, low, high);
    return;
  }
  if (tile.residual != nullptr) {
    const __m512i residual = _mm512_loadu_si512(tile.residual + row * strip.residual_stride + panel * 64);
    low = _mm512_add_ps(low, widen_bf16(_mm512_castsi512_si256(residual)));
    high = _mm512_add_ps(high, widen_bf16(_mm512_extracti64x4_epi64(residual, 1)));
  }
  _mm512_storeu_si512(tile.y + row * strip.y_stride + panel * 64,
                      reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
}

/// Words of two rows side by side: word 2i is word `first + i` of the even row, word 2i + 1 the same of the
/// odd row.
struct PairOrder {
  uint16_t words[32];
  constexpr explicit PairOrder(int first) : words() {
    for (int i = 0; i < 16; ++i) {
      words[2 * i] = static_cast<uint16_t>(first + i);
      words[2 * i + 1] = static_cast<uint16_t>(first + i + 32);
    }
  }
};
constexpr PairOrder low_pairs(0), high_pairs(16);

inline void pack_right_bf16(const char* right, int64_t stride_bytes, int64_t rows, int64_t padded_rows,
                            int64_t columns, char* panels) {
  const __m512i low_order = _mm512_loadu_si512(low_pairs.words);
  const __m512i high_order = _mm512_loadu_si512(high_pairs.words);
  const int64_t panel_bytes = padded_rows * 64;
  for (int64_t column = 0; column < columns; column += 32, panels += panel_bytes) {
    const __mmask32 mask = first_columns(columns - column);
    const char* source = right + column * 2;
    for (int64_t row = 0; row < padded_rows; row += 2) {
      const __m512i even =
          row < rows ? _mm512_maskz_loadu_epi16(mask, source + row * stride_bytes) : _mm512_setzero_si512();
      const __m512i odd = row + 1 < rows ? _mm512_maskz_loadu_epi16(mask, source + (row + 1) * stride_bytes)
                                         : _mm512_setzero_si512();
      _mm512_store_si512(panels + row * 64, _mm512_permutex2var_epi16(even, low_order, odd));
      _mm512_store_si512(panels + row * 64 + 64, _mm512_permutex2var_epi16(even, high_order, odd));
    }
  }
}

inline void transpose_left_bf16(const char* left, int64_t stride_bytes, int64_t rows, int64_t padded_rows,
                                int64_t columns, char* target, int64_t target_stride) {
  const __m512i pair_order = _mm512_loadu_si512(low_pairs.words);
  for (int64_t column = 0; column < columns; column += 16) {
    const int64_t width = columns - column < 16 ? columns - column : 16;
    const auto mask = static_cast<__mmask16>((1u << width) - 1);
    for (int64_t row = 0; row < padded_rows; row += 32) {
      __m512i block[16];
      for (int i = 0; i < 16; ++i) {
        const int64_t even_row = row + 2 * i;
        const char* source = left + even_row * stride_bytes + column * 2;
        const __m256i even =
            even_row < rows ? _mm256_maskz_loadu_epi16(mask, source) : _mm256_setzero_si256();
        const __m256i odd = even_row + 1 < rows ? _mm256_maskz_loadu_epi16(mask, source + stride_bytes)
                                                : _mm256_setzero_si256();
        block[i] =
            _mm512_permutex2var_epi16(_mm512_castsi256_si512(even), pair_order, _mm512_castsi256_si512(odd));
      }
      transpose_16x16(block);
      for (int i = 0; i < width; ++i)
        _mm512_storeu_si512(target + (column + i) * target_stride + row * 2, block[i]);
    }
  }
}

}  // namespace
}  // namespace cotune::kernels
