/// bf16 products on AVX-512 without its BF16 instructions: 12 rows by 32 columns of sums in 24 registers. bf16 is widened, on the left when rows
/// are copied and on the right when it is loaded, and multiplied and summed in f32: the sums of avx2_bf16, to the bit.
#define COTUNE_WIDENED
#include <array>
#include <utility>

#include "kernels/matrix_by_vectors.h"

namespace cotune::kernels {
namespace {

constexpr int tile_rows = 12;

COTUNE_VECTORS_BEGIN

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

/// sums[row] += a[row, 0..k) · b; a by rows of `stride` bytes, in f32; b a panel of pairs.
template <int height>
inline __attribute__((always_inline)) void add_products(__m512 (&low)[height], __m512 (&high)[height], const char* a, int64_t stride,
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

template <int height>
void multiply_rows(const Strip& strip) {
  const Tile& tile = strip.tiles[0];
  for (int64_t p = 0; p < strip.panel_count; ++p) {
    __m512 low[height], high[height];
    float* partial = strip.partial + p * (2 * tile_rows * 32);
#pragma GCC unroll 12
    for (int row = 0; row < height; ++row) {
      low[row] = strip.first ? _mm512_setzero_ps() : _mm512_load_ps(partial + row * 32);
      high[row] = strip.first ? _mm512_setzero_ps() : _mm512_load_ps(partial + row * 32 + 16);
    }
    add_products<height>(low, high, tile.a, strip.a_stride, strip.b + p * strip.panel_bytes, strip.k, strip.ahead_of(p, strip.k / 4));
    if (!strip.last) {
#pragma GCC unroll 12
      for (int row = 0; row < height; ++row) {
        _mm512_store_ps(partial + row * 32, low[row]);
        _mm512_store_ps(partial + row * 32 + 16, high[row]);
      }
      continue;
    }
    for (int i = 0; i < tile.term_count; ++i) {
      const TileTerm& term = tile.terms[i];
      const int64_t panel = strip.first_panel + p - term.panel_begin;
      if (panel < 0 || panel >= term.panel_end - term.panel_begin) continue;
      const char* factor = term.panels + panel * term.panel_bytes;
      add_products<height>(low, high, term.s, term.s_stride, factor, term.k, {factor, 0});
    }
#pragma GCC unroll 12
    for (int row = 0; row < height; ++row) {
      write_half_row<uint16_t>(strip, tile, p * 32, row, low[row]);
      write_half_row<uint16_t>(strip, tile, p * 32 + half_columns, row, high[row]);
    }
  }
}

COTUNE_VECTORS_END

template <int... heights>
constexpr auto by_height(std::integer_sequence<int, heights...>) {
  return std::array<void (*)(const Strip&), sizeof...(heights)>{multiply_rows<heights + 1>...};
}

void multiply(const Strip& strip) {
  static constexpr auto table = by_height(std::make_integer_sequence<int, tile_rows>());
  table[static_cast<size_t>(strip.tiles[0].height - 1)](strip);
}

void nothing() {}

}  // namespace

const MatrixKernels avx512_widened_kernels = {.tile_rows = tile_rows,
                                              .tiles_per_strip = 1,
                                              .k_block = 2048,
                                              .dtype = DType::bf16,
                                              .depth_unit = 32,
                                              .left_element_bytes = 4,
                                              .convert_left = widen_row,
                                              .begin = nothing,
                                              .end = nothing,
                                              .multiply = multiply,
                                              .pack_right = pack_right_bf16,
                                              .transpose_left = transpose_left<uint16_t>};

}  // namespace cotune::kernels
