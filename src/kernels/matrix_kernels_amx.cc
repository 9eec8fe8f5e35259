/// bf16 products on AMX tiles: two by two accumulators of 16×16, the rounding of one panel between the
/// products of the next.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12 on its own immintrin.h (GCC bug 105593)
#include <immintrin.h>

#include "kernels/matrix_kernels.h"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16")

#include "kernels/amx_tiles.h"
#include "kernels/matrix_rounding_bf16.h"

namespace cotune::kernels {
namespace {

constexpr int64_t step_bytes_a = step * 2;  // along a row of the left operand

template <bool two>
inline void add_terms(const Strip& strip, int64_t panel) {
  for (int side = 0; side < (two ? 2 : 1); ++side) {
    const Tile& tile = strip.tiles[side];
    for (int i = 0; i < tile.term_count; ++i) {
      const TileTerm& term = tile.terms[i];
      if (panel < term.panel_begin || panel >= term.panel_end) continue;
      const char* b = term.panels + (panel - term.panel_begin) * term.panel_bytes;
      for (int64_t k = 0; k < term.k; k += step) {
        load<6>(b, row_pair_bytes);
        load<7>(b + half_panel, row_pair_bytes);
        if (side == 0) {
          load<4>(term.s + k * 2, term.s_stride);
          add_product<0, 4, 6>();
          add_product<1, 4, 7>();
        } else {
          load<5>(term.s + k * 2, term.s_stride);
          add_product<2, 5, 6>();
          add_product<3, 5, 7>();
        }
        b += step_tile_bytes;
      }
    }
  }
}

/// Writes rows [row, end) of a strip from its sums of one panel; returns where it stopped.
inline int write_rows(const Strip& strip, bool plain, int64_t panel, const float* sums, int row, int end) {
  return for_rows(strip, sums, row, end, [&](const Tile& tile, int in_tile, const float* from) {
    write_row_bf16(strip, plain, tile, panel, in_tile, _mm512_load_ps(from), _mm512_load_ps(from + 16));
  });
}

template <bool two>
void multiply_tiles(const Strip& strip) {
  alignas(64) float sums[2][2 * 16 * 32];
  const int64_t steps = strip.k / step;
  const bool plain = is_plain(strip);
  const int first_height = strip.tiles[0].height;
  const int rows = first_height + (two ? strip.tiles[1].height : 0);
  const int rows_per_step = steps > 1 ? static_cast<int>((rows + steps - 2) / (steps - 1)) : rows;
  float* done = nullptr;  // where the sums of the panel before belong
  for (int64_t p = 0; p < strip.panel_count; ++p) {
    float* partial = strip.partial + p * (2 * 16 * 32);
    const char* b = strip.b + p * strip.panel_bytes;
    const char* a0 = strip.tiles[0].a;
    const char* a1 = strip.tiles[1].a;
    const bool some = steps > 0;
    change_over<0>(done, strip.first, partial);
    if (some) {
      load_streaming<6>(b, row_pair_bytes);
      load<4>(a0, strip.a_stride);
      add_product<0, 4, 6>();
    }
    change_over<1>(done, strip.first, partial);
    if (some) {
      load_streaming<7>(b + half_panel, row_pair_bytes);
      add_product<1, 4, 7>();
    }
    if constexpr (two) {
      change_over<2>(done, strip.first, partial);
      if (some) {
        load<5>(a1, strip.a_stride);
        add_product<2, 5, 6>();
      }
      change_over<3>(done, strip.first, partial);
      if (some) add_product<3, 5, 7>();
    }
    int row = strip.last && p > 0 ? 0 : rows;
    for (int64_t i = 1; i < steps; ++i) {
      a0 += step_bytes_a;
      b += step_tile_bytes;
      load_streaming<6>(b, row_pair_bytes);
      load_streaming<7>(b + half_panel, row_pair_bytes);
      load<4>(a0, strip.a_stride);
      add_product<0, 4, 6>();
      add_product<1, 4, 7>();
      if constexpr (two) {
        a1 += step_bytes_a;
        load<5>(a1, strip.a_stride);
        add_product<2, 5, 6>();
        add_product<3, 5, 7>();
      }
      if (row < rows) row = write_rows(strip, plain, p - 1, done, row, row + rows_per_step);
    }
    if (row < rows) write_rows(strip, plain, p - 1, done, row, rows);
    if (strip.last) add_terms<two>(strip, strip.first_panel + p);
    done = strip.last ? sums[p & 1] : partial;
  }
  store<0>(done + sum_offset<0>, sum_stride);
  store<1>(done + sum_offset<1>, sum_stride);
  if constexpr (two) {
    store<2>(done + sum_offset<2>, sum_stride);
    store<3>(done + sum_offset<3>, sum_stride);
  }
  if (!strip.last) return;
  write_rows(strip, plain, strip.panel_count - 1, done, 0, rows);
}

void multiply(const Strip& strip) {
  configure(strip);
  if (strip.tile_count == 2) {
    multiply_tiles<true>(strip);
  } else {
    multiply_tiles<false>(strip);
  }
}

}  // namespace

const MatrixKernels amx_bf16_kernels = {.tile_rows = 16,
                                        .tiles_per_strip = 2,
                                        .k_block = 640,
                                        .dtype = DType::bf16,
                                        .depth_unit = step,
                                        .left_element_bytes = 2,
                                        .convert_left = nullptr,
                                        .begin = begin_tiles,
                                        .end = end_tiles,
                                        .multiply = multiply,
                                        .pack_right = pack_right_bf16,
                                        .transpose_left = transpose_left_bf16};

}  // namespace cotune::kernels
