/// bf16 products on AMX tiles: two by two accumulators of 16×16, the rounding of one panel between the
/// products of the next.
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

constexpr int64_t step = 32;                     // k per tile product
constexpr int64_t step_bytes_a = step * 2;       // along a row of the left operand
constexpr int64_t step_bytes_b = step * 2 * 32;  // along a panel
constexpr int64_t row_pair_bytes = 128;          // [32 columns][2] of a panel
constexpr int64_t half_panel = 64;
constexpr int sum_stride = 128;  // bytes of a row of 32 sums

thread_local int configured_heights = 0;

// Tile instructions with the register as a template argument. Loads do not tell the compiler that they read
// memory: memory_is_read() stands where earlier stores must be complete; stores do say that they write.
template <int tile>
inline void load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(tile));
}
/// A load that leaves the first-level cache to others: for the operand that streams past.
template <int tile>
inline void load_streaming(const void* from, int64_t stride) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(tile));
}
template <int tile>
inline void store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(tile) : "memory");
}
template <int tile>
inline void zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(tile));
}
/// sum += left · right over 32 of k.
template <int sum, int left, int right>
inline void add_product() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(left), "i"(right));
}
inline void memory_is_read() {
  asm volatile("" ::: "memory");
}

void configure(int first, int second) {
  const int wanted = first * 32 + second;
  if (configured_heights == wanted) return;
  TileConfig config;
  config.rows[0] = config.rows[1] = config.rows[4] = static_cast<uint8_t>(first);
  config.rows[2] = config.rows[3] = config.rows[5] = static_cast<uint8_t>(second == 0 ? 16 : second);
  asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
  configured_heights = wanted;
}

void begin() {
  configured_heights = 0;
}
void end() {
  _tile_release();
  configured_heights = 0;
}

/// Sum tile `index` lies at row 16·(index / 2), column 16·(index % 2) of a strip's [32][32] sums.
template <int index>
constexpr int sum_offset = index / 2 * 16 * 32 + index % 2 * 16;

/// Puts the sums of the panel before (if any) into `done` and starts the next panel from zero or from
/// `partial`. The tiles change over one by one, between the first products of the next panel, so that the
/// multiplier never waits.
template <int index>
inline void change_over(float* done, bool from_zero, const float* partial) {
  if (done != nullptr) store<index>(done + sum_offset<index>, sum_stride);
  if (from_zero) {
    zero<index>();
  } else {
    load<index>(partial + sum_offset<index>, sum_stride);
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
        b += step_bytes_b;
      }
    }
  }
}

/// Writes rows [row, end) of a strip from its sums of one panel; returns where it stopped, at the latest at
/// the strip's end.
inline int write_rows(const Strip& strip, bool plain, int64_t panel, const float* sums, int row, int end) {
  const int first_height = strip.tiles[0].height;
  const int height = first_height + strip.tiles[1].height;
  if (end > height) end = height;
  for (; row < end; ++row) {
    const bool second = row >= first_height;
    const int in_tile = second ? row - first_height : row;
    const float* from = sums + ((second ? 16 : 0) + in_tile) * 32;
    write_row_bf16(strip, plain, strip.tiles[second], panel, in_tile, _mm512_load_ps(from),
                   _mm512_load_ps(from + 16));
  }
  return end;
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
      b += step_bytes_b;
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
  memory_is_read();
  configure(strip.tiles[0].height, strip.tile_count == 2 ? strip.tiles[1].height : 0);
  if (strip.tile_count == 2) {
    multiply_tiles<true>(strip);
  } else {
    multiply_tiles<false>(strip);
  }
}

}  // namespace

const MatrixKernels amx_bf16_kernels = {
    16, 2, 640, DType::bf16, begin, end, multiply, pack_right_bf16, transpose_left_bf16};

}  // namespace cotune::kernels
