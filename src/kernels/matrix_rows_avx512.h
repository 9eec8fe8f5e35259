/// Inside the matrix kernels of AVX-512 vectors: a strip of up to 12 rows by 32 columns of sums in 24 registers. Included where a
/// translation unit has set its instructions (and so including nothing of the standard library), for which each gets its own copy.
#pragma once

#include "kernels/matrix_kernels.h"

namespace cotune::kernels {
namespace {

constexpr int tile_rows = 12;

/// What a kernel has of its own, made anew for every strip:
///   Kernel{strip}
///   steps(k)                                    calls of Ahead::bring() for a depth of k
///   add_products<height>(low, high, a, stride, b, k, ahead)
///                                               sums[row] += a[row, 0..k) · b; a by rows of `stride` bytes, b a panel
///   write_row(tile, panel, row, low, high)      what becomes of a row of sums
template <typename Kernel, int height>
void multiply_rows(const Strip& strip) {
  const Tile& tile = strip.tiles[0];
  const Kernel kernel{strip};
  for (int64_t p = 0; p < strip.panel_count; ++p) {
    __m512 low[height], high[height];
    float* partial = strip.partial + p * (2 * tile_rows * 32);
#pragma GCC unroll 12
    for (int row = 0; row < height; ++row) {
      low[row] = strip.first ? _mm512_setzero_ps() : _mm512_load_ps(partial + row * 32);
      high[row] = strip.first ? _mm512_setzero_ps() : _mm512_load_ps(partial + row * 32 + 16);
    }
    Kernel::template add_products<height>(low, high, tile.a, strip.a_stride, strip.b + p * strip.panel_bytes, strip.k,
                                          strip.ahead_of(p, Kernel::steps(strip.k)));
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
      Kernel::template add_products<height>(low, high, term.s, term.s_stride, factor, term.k, {factor, 0});
    }
#pragma GCC unroll 12
    for (int row = 0; row < height; ++row) kernel.write_row(tile, p, row, low[row], high[row]);
  }
}

template <typename Kernel>
void multiply_strip(const Strip& strip) {
  static constexpr void (*by_height[tile_rows])(const Strip&) = {multiply_rows<Kernel, 1>,  multiply_rows<Kernel, 2>,  multiply_rows<Kernel, 3>,
                                                                 multiply_rows<Kernel, 4>,  multiply_rows<Kernel, 5>,  multiply_rows<Kernel, 6>,
                                                                 multiply_rows<Kernel, 7>,  multiply_rows<Kernel, 8>,  multiply_rows<Kernel, 9>,
                                                                 multiply_rows<Kernel, 10>, multiply_rows<Kernel, 11>, multiply_rows<Kernel, 12>};
  by_height[strip.tiles[0].height - 1](strip);
}

void nothing() {}

}  // namespace
}  // namespace cotune::kernels
