/// f32 products on vectors: 12 rows by 32 columns of sums in 24 registers.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12 on its own immintrin.h (GCC bug 105593)
#include <immintrin.h>

#include <cstring>

#include "kernels/matrix_kernels.h"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq")

#include "kernels/matrix_rounding_f32.h"
#include "kernels/matrix_rows_avx512.h"

namespace cotune::kernels {
namespace {

template <int height>
inline __attribute__((always_inline)) void add_one(__m512 (&low)[height], __m512 (&high)[height],
                                                   const char* a, int64_t stride, const char* b) {
  const __m512 b_low = _mm512_load_ps(b);
  const __m512 b_high = _mm512_load_ps(b + 64);
#pragma GCC unroll 12
  for (int row = 0; row < height; ++row) {
    const __m512 left = _mm512_set1_ps(*reinterpret_cast<const float*>(a + row * stride));
    low[row] = _mm512_fmadd_ps(left, b_low, low[row]);
    high[row] = _mm512_fmadd_ps(left, b_high, high[row]);
  }
}

struct F32Rows {
  const Strip& strip;

  static int64_t steps(int64_t k) { return k / 4; }

  template <int height>
  static inline __attribute__((always_inline)) void add_products(__m512 (&low)[height], __m512 (&high)[height],
                                                                 const char* a, int64_t stride, const char* b,
                                                                 int64_t k, Ahead ahead) {
    int64_t i = 0;
    for (; i + 4 <= k; i += 4, a += 16, b += 512) {
      ahead.bring();
      add_one<height>(low, high, a, stride, b);
      add_one<height>(low, high, a + 4, stride, b + 128);
      add_one<height>(low, high, a + 8, stride, b + 256);
      add_one<height>(low, high, a + 12, stride, b + 384);
    }
    for (; i < k; ++i, a += 4, b += 128) add_one<height>(low, high, a, stride, b);
  }
  inline __attribute__((always_inline)) void write_row(const Tile& tile, int64_t p, int row, __m512 low, __m512 high) const {
    write_half_row(strip, tile, p * 32, row, low);
    write_half_row(strip, tile, p * 32 + 16, row, high);
  }
};

void pack_right(const char* right, int64_t stride_bytes, int64_t rows, int64_t padded_rows, int64_t columns,
                char* panels) {
  const int64_t panel_bytes = padded_rows * 128;
  for (int64_t column = 0; column < columns; column += 32, panels += panel_bytes) {
    const __mmask16 low = first_columns(columns - column);
    const __mmask16 high = first_columns(columns - column - 16);
    for (int64_t row = 0; row < padded_rows; ++row) {
      const auto* source = reinterpret_cast<const float*>(right + row * stride_bytes) + column;
      const bool inside = row < rows;
      _mm512_store_ps(panels + row * 128, _mm512_maskz_loadu_ps(inside ? low : __mmask16{0}, source));
      _mm512_store_ps(panels + row * 128 + 64,
                      _mm512_maskz_loadu_ps(inside ? high : __mmask16{0}, source + 16));
    }
  }
}

void transpose_left(const char* left, int64_t stride_bytes, int64_t rows, int64_t padded_rows,
                    int64_t columns, char* target, int64_t target_stride) {
  for (int64_t row = 0; row < padded_rows; ++row) {
    const auto* source = reinterpret_cast<const float*>(left + row * stride_bytes);
    for (int64_t column = 0; column < columns; ++column) {
      *reinterpret_cast<float*>(target + column * target_stride + row * 4) =
          row < rows ? source[column] : 0.0F;
    }
  }
}

}  // namespace

const MatrixKernels avx512_kernels = {.tile_rows = tile_rows,
                                      .tiles_per_strip = 1,
                                      .k_block = 2048,
                                      .dtype = DType::f32,
                                      .depth_unit = 1,
                                      .left_element_bytes = 4,
                                      .convert_left = nullptr,
                                      .begin = nothing,
                                      .end = nothing,
                                      .multiply = multiply_strip<F32Rows>,
                                      .pack_right = pack_right,
                                      .transpose_left = transpose_left};

}  // namespace cotune::kernels
