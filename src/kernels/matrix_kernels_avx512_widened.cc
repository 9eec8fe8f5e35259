/// bf16 products on AVX-512 without its BF16 instructions: 12 rows by 32 columns of sums in 24 registers. bf16 is widened, on the left when rows
/// are copied and on the right when it is loaded, and multiplied and summed in f32: the sums of avx2_bf16, to the bit.
#define COTUNE_WIDENED
#include "kernels/matrix_by_vectors.h"

COTUNE_VECTORS_BEGIN

#include "kernels/matrix_rows_avx512.h"

namespace cotune::kernels {
namespace {

template <int height>
inline __attribute__((always_inline)) void add_one(__m512 (&low)[height], __m512 (&high)[height], const char* a, int64_t stride, __m512i b_low,
                                                   __m512i b_high) {
#pragma GCC unroll 12
  for (int row = 0; row < height; ++row) {
    const __m512 left = _mm512_set1_ps(*reinterpret_cast<const float*>(a + row * stride));
    low[row] = _mm512_fmadd_ps(left, _mm512_castsi512_ps(b_low), low[row]);
    high[row] = _mm512_fmadd_ps(left, _mm512_castsi512_ps(b_high), high[row]);
  }
}

/// `a` in f32, panels of pairs.
struct WidenedRows {
  const Strip& strip;

  static int64_t steps(int64_t k) { return k / 4; }

  template <int height>
  static inline __attribute__((always_inline)) void add_products(__m512 (&low)[height], __m512 (&high)[height], const char* a, int64_t stride,
                                                                 const char* b, int64_t k, Ahead ahead) {
    const __m512i upper = _mm512_set1_epi32(int(0xffff0000));
    for (; k > 0; k -= 4, a += 16, b += 2 * lane_row_bytes) {
      ahead.bring();
#pragma GCC unroll 2
      for (int pair = 0; pair < 2; ++pair) {
        const __m512i pairs_low = _mm512_load_si512(b + pair * lane_row_bytes);
        const __m512i pairs_high = _mm512_load_si512(b + pair * lane_row_bytes + half_bytes);
        add_one<height>(low, high, a + pair * 8, stride, _mm512_slli_epi32(pairs_low, 16), _mm512_slli_epi32(pairs_high, 16));
        add_one<height>(low, high, a + pair * 8 + 4, stride, _mm512_and_si512(pairs_low, upper), _mm512_and_si512(pairs_high, upper));
      }
    }
  }
  inline __attribute__((always_inline)) void write_row(const Tile& tile, int64_t p, int row, __m512 low, __m512 high) const {
    write_half_row<uint16_t>(strip, tile, p * 32, row, low);
    write_half_row<uint16_t>(strip, tile, p * 32 + half_columns, row, high);
  }
};

}  // namespace

COTUNE_VECTORS_END

const MatrixKernels avx512_widened_kernels = {.tile_rows = tile_rows,
                                              .tiles_per_strip = 1,
                                              .k_block = 2048,
                                              .dtype = DType::bf16,
                                              .depth_unit = 32,
                                              .left_element_bytes = 4,
                                              .convert_left = widen_row,
                                              .begin = nothing,
                                              .end = nothing,
                                              .multiply = multiply_strip<WidenedRows>,
                                              .pack_right = pack_right_bf16,
                                              .transpose_left = transpose_left<uint16_t>};

}  // namespace cotune::kernels
