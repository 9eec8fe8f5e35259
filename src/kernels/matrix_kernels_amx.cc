/// bf16 products on AMX tiles: two by two accumulators of 16×16, the rounding of one panel between the products of the next.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12 on its own immintrin.h (GCC bug 105593)
#include <immintrin.h>

#include "kernels/matrix_kernels.h"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16")

#include "kernels/matrix_rounding_bf16.h"

namespace cotune::kernels {
namespace {

// Tile registers: sums 0 1 (first tile of rows), 2 3 (second); left operands 4, 5; right operands 6, 7.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

constexpr int64_t step = 32;                    // k per tile product
constexpr int64_t step_bytes_a = step * 2;      // along a row of the left operand
constexpr int64_t step_bytes_b = step * 2 * 32;  // along a panel
constexpr int64_t row_pair_bytes = 128;         // [32 columns][2] of a panel
constexpr int64_t half_panel = 64;
constexpr int sum_stride = 128;                 // bytes of a row of 32 sums

thread_local int configured_heights = 0;

// The compiler's tile intrinsics do not say that they read memory.
inline void memory_is_read() { asm volatile("" ::: "memory"); }

void configure(int first, int second) {
  const int wanted = first * 32 + second;
  if (configured_heights == wanted) return;
  TileConfig config;
  config.rows[0] = config.rows[1] = config.rows[4] = static_cast<uint8_t>(first);
  config.rows[2] = config.rows[3] = config.rows[5] = static_cast<uint8_t>(second == 0 ? 16 : second);
  asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
  configured_heights = wanted;
}

void begin() { configured_heights = 0; }
void end() {
  _tile_release();
  configured_heights = 0;
}

template <bool two>
inline void load_sums(const float* sums) {
  _tile_loadd(0, sums, sum_stride);
  _tile_loadd(1, sums + 16, sum_stride);
  if constexpr (two) {
    _tile_loadd(2, sums + 16 * 32, sum_stride);
    _tile_loadd(3, sums + 16 * 32 + 16, sum_stride);
  }
}

template <bool two>
inline void store_sums(float* sums) {
  _tile_stored(0, sums, sum_stride);
  _tile_stored(1, sums + 16, sum_stride);
  if constexpr (two) {
    _tile_stored(2, sums + 16 * 32, sum_stride);
    _tile_stored(3, sums + 16 * 32 + 16, sum_stride);
  }
}

template <bool two>
inline void add_terms(const Strip& strip, int64_t panel) {
  for (int side = 0; side < (two ? 2 : 1); ++side) {
    const Tile& tile = strip.tiles[side];
    for (int i = 0; i < tile.term_count; ++i) {
      const TileTerm& term = tile.terms[i];
      if (panel < term.panel_begin || panel >= term.panel_end) continue;
      const char* b = term.panels + (panel - term.panel_begin) * term.panel_bytes;
      for (int64_t k = 0; k < term.k; k += step) {
        _tile_loadd(6, b, row_pair_bytes);
        _tile_loadd(7, b + half_panel, row_pair_bytes);
        if (side == 0) {
          _tile_loadd(4, term.s + k * 2, term.s_stride);
          _tile_dpbf16ps(0, 4, 6);
          _tile_dpbf16ps(1, 4, 7);
        } else {
          _tile_loadd(5, term.s + k * 2, term.s_stride);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
        b += step_bytes_b;
      }
    }
  }
}

template <bool two>
void multiply_tiles(const Strip& strip) {
  alignas(64) float sums[2][2 * 16 * 32];
  const int64_t steps = strip.k / step;
  const int rows = strip.tiles[0].height + (two ? strip.tiles[1].height : 0);
  for (int64_t p = 0; p <= strip.panel_count; ++p) {
    const bool rounding = strip.last && p > 0;
    const float* done = sums[(p + 1) & 1];
    int row = 0;
    const int first_height = strip.tiles[0].height;
    auto round_rows = [&](int end) {
      for (; row < end; ++row) {
        const int side = row >= first_height;
        const int in_tile = side ? row - first_height : row;
        const float* from = done + (side * 16 + in_tile) * 32;
        write_row_bf16(strip, strip.tiles[side], p - 1, in_tile, _mm512_load_ps(from), _mm512_load_ps(from + 16));
      }
    };
    if (p == strip.panel_count) {
      if (rounding) round_rows(rows);
      break;
    }
    float* partial = strip.partial + p * (2 * 16 * 32);
    if (strip.first) {
      _tile_zero(0);
      _tile_zero(1);
      if constexpr (two) {
        _tile_zero(2);
        _tile_zero(3);
      }
    } else {
      load_sums<two>(partial);
    }
    const char* b = strip.b + p * strip.panel_bytes;
    const char* a0 = strip.tiles[0].a;
    const char* a1 = strip.tiles[1].a;
    const int rows_per_step = steps == 0 ? 0 : static_cast<int>((rows + steps - 1) / steps);
    for (int64_t i = 0; i < steps; ++i) {
      _tile_loadd(4, a0, strip.a_stride);
      _tile_loadd(6, b, row_pair_bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b + half_panel, row_pair_bytes);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (two) {
        _tile_loadd(5, a1, strip.a_stride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        a1 += step_bytes_a;
      }
      a0 += step_bytes_a;
      b += step_bytes_b;
      if (rounding) round_rows(row + rows_per_step < rows ? row + rows_per_step : rows);
    }
    if (rounding) round_rows(rows);
    if (strip.last) {
      add_terms<two>(strip, strip.first_panel + p);
      store_sums<two>(sums[p & 1]);
    } else {
      store_sums<two>(partial);
    }
  }
}

void multiply(const Strip& strip) {
  memory_is_read();
  configure(strip.tiles[0].height, strip.tile_count == 2 ? strip.tiles[1].height : 0);
  if (strip.tile_count == 2) {
    multiply_tiles<true>(strip);
  } else {
    multiply_tiles<false>(strip);
  }
}

}  // namespace

const MatrixKernels amx_bf16_kernels = {16, 2, 576, DType::bf16, begin, end, multiply, pack_right_bf16, transpose_left_bf16};

}  // namespace cotune::kernels
