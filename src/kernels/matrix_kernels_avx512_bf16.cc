/// bf16 products on vectors: 12 rows by 32 columns of sums in 24 registers.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12 on its own immintrin.h (GCC bug 105593)
#include <immintrin.h>

#include <array>
#include <cstring>
#include <utility>

#include "kernels/matrix_kernels.h"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")

#include "kernels/matrix_rounding_bf16.h"

namespace cotune::kernels {
namespace {

constexpr int tile_rows = 12;

/// sums[row] += a[row, 0..k) · b; a by rows of `stride` bytes, b a panel.
template <int height>
inline __attribute__((always_inline)) void add_products(__m512 (&low)[height], __m512 (&high)[height],
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

template <int height>
void multiply_rows(const Strip& strip) {
  const Tile& tile = strip.tiles[0];
  const bool plain = is_plain(strip);
  for (int64_t p = 0; p < strip.panel_count; ++p) {
    __m512 low[height], high[height];
    float* partial = strip.partial + p * (2 * tile_rows * 32);
#pragma GCC unroll 12
    for (int row = 0; row < height; ++row) {
      low[row] = strip.first ? _mm512_setzero_ps() : _mm512_load_ps(partial + row * 32);
      high[row] = strip.first ? _mm512_setzero_ps() : _mm512_load_ps(partial + row * 32 + 16);
    }
    add_products<height>(low, high, tile.a, strip.a_stride, strip.b + p * strip.panel_bytes, strip.k, strip.ahead_of(p, strip.k / 8));
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
    for (int row = 0; row < height; ++row) write_row_bf16(strip, plain, tile, p, row, low[row], high[row]);
  }
}

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

const MatrixKernels avx512_bf16_kernels = {.tile_rows = tile_rows,
                                           .tiles_per_strip = 1,
                                           .k_block = 2048,
                                           .dtype = DType::bf16,
                                           .depth_unit = 32,
                                           .left_element_bytes = 2,
                                           .convert_left = nullptr,
                                           .begin = nothing,
                                           .end = nothing,
                                           .multiply = multiply,
                                           .pack_right = pack_right_bf16,
                                           .transpose_left = transpose_left_bf16};

}  // namespace cotune::kernels
