/// bf16 products on vectors: 12 rows by 32 columns of sums in 24 registers.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12 on its own immintrin.h (GCC bug 105593)
#include <immintrin.h>

#include <cstring>

#include "kernels/matrix_kernels.h"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")

#include "kernels/matrix_rounding_bf16.h"
#include "kernels/matrix_rows_avx512.h"

namespace cotune::kernels {
namespace {

struct Bf16Rows {
  const Strip& strip;
  bool plain = is_plain(strip);

  static int64_t steps(int64_t k) { return k / 8; }

  template <int height>
  static inline __attribute__((always_inline)) void add_products(__m512 (&low)[height], __m512 (&high)[height],
                                                                 const char* a, int64_t stride, const char* b,
                                                                 int64_t k, Ahead ahead) {
    for (int64_t end = k * 2, at = 0; at < end; at += 16) {
      ahead.bring();
      const char* rows = a + at;
#pragma GCC unroll 4
      for (int pair = 0; pair < 4; ++pair) {
        const auto b_low = reinterpret_cast<__m512bh>(_mm512_load_si512(b + pair * 128));
        const auto b_high = reinterpret_cast<__m512bh>(_mm512_load_si512(b + pair * 128 + 64));
#pragma GCC unroll 12
        for (int row = 0; row < height; ++row) {
          int32_t value;
          std::memcpy(&value, rows + row * stride + pair * 4, sizeof value);
          const auto left = reinterpret_cast<__m512bh>(_mm512_set1_epi32(value));
          low[row] = _mm512_dpbf16_ps(low[row], left, b_low);
          high[row] = _mm512_dpbf16_ps(high[row], left, b_high);
        }
      }
      b += 512;
    }
  }
  inline __attribute__((always_inline)) void write_row(const Tile& tile, int64_t p, int row, __m512 low, __m512 high) const {
    write_row_bf16(strip, plain, tile, p, row, low, high);
  }
};

}  // namespace

const MatrixKernels avx512_bf16_kernels = {.tile_rows = tile_rows,
                                           .tiles_per_strip = 1,
                                           .k_block = 2048,
                                           .dtype = DType::bf16,
                                           .depth_unit = 32,
                                           .left_element_bytes = 2,
                                           .convert_left = nullptr,
                                           .begin = nothing,
                                           .end = nothing,
                                           .multiply = multiply_strip<Bf16Rows>,
                                           .pack_right = pack_right_bf16,
                                           .transpose_left = transpose_left_bf16};

}  // namespace cotune::kernels
