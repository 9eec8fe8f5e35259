/// f32 products on AMX tiles for bf16 (kernels/float_parts.h). A left row is [k / 32][3 parts][32], a panel
/// of the right operand [k / 32][1 to 3 parts][16][32][2]; the pairs of parts of 32 of k are added to the
/// same f32 sums, the smallest first.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12 on its own immintrin.h (GCC bug 105593)
#include <immintrin.h>

#include "base/error.h"
#include "kernels/matrix_kernels.h"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16")

#include "kernels/amx_tiles.h"
#include "kernels/float_parts_avx512.h"
#include "kernels/matrix_rounding_f32.h"

namespace cotune::kernels {
namespace {

constexpr int64_t part_bytes_a = step * 2;  // of a left row, one part of one step
constexpr int64_t step_bytes_a = largest_part_count * part_bytes_a;
constexpr int64_t lanes = 16;

void convert_left(const char* x, int64_t k, char* target) {
  const auto* from = reinterpret_cast<const float*>(x);
  for (int64_t i = 0; i < k; i += step, target += step_bytes_a) {
    for (int64_t half = 0; half < step; half += lanes) {
      const int64_t left = k - i - half;
      const auto mask = static_cast<__mmask16>(left >= lanes ? 0xffff : left <= 0 ? 0 : (1u << left) - 1);
      const LaneParts split = split_lanes(_mm512_maskz_loadu_ps(mask, from + i + half));
      for (int part = 0; part < largest_part_count; ++part)
        _mm256_store_si256(reinterpret_cast<__m256i*>(target + part * part_bytes_a + half * 2),
                           split.part[part]);
    }
  }
}

/// sums += (left part) · (right part that registers 6 and 7 hold), for one tile of rows or for both.
template <int part, bool first, bool second>
inline void add_pair(const char* a0, const char* a1, int64_t a_stride) {
  if constexpr (first) {
    load<4>(a0 + part * part_bytes_a, a_stride);
    add_product<0, 4, 6>();
    add_product<1, 4, 7>();
  }
  if constexpr (second) {
    load<5>(a1 + part * part_bytes_a, a_stride);
    add_product<2, 5, 6>();
    add_product<3, 5, 7>();
  }
}

template <int part>
inline void load_right(const char* b) {
  load<6>(b + part * step_tile_bytes, row_pair_bytes);
  load<7>(b + part * step_tile_bytes + half_panel, row_pair_bytes);
}

/// One step of 32 of k: of the nine pairs of three by three parts, the six of at least 2⁻¹⁶ of the largest.
template <int right_parts, bool first, bool second>
inline void add_step(const char* a0, const char* a1, int64_t a_stride, const char* b) {
  if constexpr (right_parts > 2) {
    load_right<2>(b);
    add_pair<0, first, second>(a0, a1, a_stride);
  }
  if constexpr (right_parts > 1) {
    load_right<1>(b);
    add_pair<1, first, second>(a0, a1, a_stride);
    add_pair<0, first, second>(a0, a1, a_stride);
  }
  load_right<0>(b);
  add_pair<2, first, second>(a0, a1, a_stride);
  add_pair<1, first, second>(a0, a1, a_stride);
  add_pair<0, first, second>(a0, a1, a_stride);
}

template <bool first, bool second>
void add_term(const TileTerm& term, int64_t panel) {
  COTUNE_CHECK(term.parts == largest_part_count, "a low-rank factor in {} parts", term.parts);
  const char* b = term.panels + (panel - term.panel_begin) * term.panel_bytes;
  for (int64_t k = 0; k < term.k; k += step, b += largest_part_count * step_tile_bytes) {
    const char* s = term.s + k / step * step_bytes_a;
    add_step<largest_part_count, first, second>(s, s, term.s_stride, b);
  }
}

template <bool two>
void add_terms(const Strip& strip, int64_t panel) {
  for (int side = 0; side < (two ? 2 : 1); ++side) {
    const Tile& tile = strip.tiles[side];
    for (int i = 0; i < tile.term_count; ++i) {
      const TileTerm& term = tile.terms[i];
      if (panel < term.panel_begin || panel >= term.panel_end) continue;
      if (side == 0) {
        add_term<true, false>(term, panel);
      } else {
        add_term<false, true>(term, panel);
      }
    }
  }
}

inline int write_rows(const Strip& strip, int64_t panel, const float* sums, int row, int end) {
  return for_rows(strip, sums, row, end, [&](const Tile& tile, int in_tile, const float* from) {
    write_half_row(strip, tile, panel * 32, in_tile, _mm512_load_ps(from));
    write_half_row(strip, tile, panel * 32 + 16, in_tile, _mm512_load_ps(from + 16));
  });
}

template <int right_parts, bool two>
void multiply_tiles(const Strip& strip) {
  alignas(64) float sums[2][2 * 16 * 32];
  const int64_t steps = strip.k / step;
  const int rows = strip.tiles[0].height + (two ? strip.tiles[1].height : 0);
  const int rows_per_step = steps > 0 ? static_cast<int>((rows + steps - 1) / steps) : rows;
  float* done = nullptr;  // where the sums of the panel before belong
  for (int64_t p = 0; p < strip.panel_count; ++p) {
    float* partial = strip.partial + p * (2 * 16 * 32);
    const char* b = strip.b + p * strip.panel_bytes;
    const char* a0 = strip.tiles[0].a;
    const char* a1 = strip.tiles[1].a;
    change_over<0>(done, strip.first, partial);
    change_over<1>(done, strip.first, partial);
    if constexpr (two) {
      change_over<2>(done, strip.first, partial);
      change_over<3>(done, strip.first, partial);
    }
    int row = strip.last && p > 0 ? 0 : rows;
    for (int64_t i = 0; i < steps; ++i) {
      add_step<right_parts, true, two>(a0, a1, strip.a_stride, b);
      a0 += step_bytes_a;
      if constexpr (two) a1 += step_bytes_a;
      b += right_parts * step_tile_bytes;
      if (row < rows) row = write_rows(strip, p - 1, done, row, row + rows_per_step);
    }
    if (row < rows) write_rows(strip, p - 1, done, row, rows);
    if (strip.last) add_terms<two>(strip, strip.first_panel + p);
    done = strip.last ? sums[p & 1] : partial;
  }
  store<0>(done + sum_offset<0>, sum_stride);
  store<1>(done + sum_offset<1>, sum_stride);
  if constexpr (two) {
    store<2>(done + sum_offset<2>, sum_stride);
    store<3>(done + sum_offset<3>, sum_stride);
  }
  if (strip.last) write_rows(strip, strip.panel_count - 1, done, 0, rows);
}

template <int right_parts>
void multiply_parts(const Strip& strip) {
  if (strip.tile_count == 2) {
    multiply_tiles<right_parts, true>(strip);
  } else {
    multiply_tiles<right_parts, false>(strip);
  }
}

void multiply(const Strip& strip) {
  configure(strip);
  switch (strip.b_parts) {
    case 1:
      multiply_parts<1>(strip);
      break;
    case 2:
      multiply_parts<2>(strip);
      break;
    case 3:
      multiply_parts<3>(strip);
      break;
    default:
      COTUNE_CHECK(false, "a matrix in {} parts", strip.b_parts);
  }
}

}  // namespace

const MatrixKernels amx_f32_kernels = {.tile_rows = 16,
                                       .tiles_per_strip = 2,
                                       .k_block = 608,
                                       .dtype = DType::f32,
                                       .depth_unit = step,
                                       .left_element_bytes = 2 * largest_part_count,
                                       .in_parts = true,
                                       .convert_left = convert_left,
                                       .begin = begin_tiles,
                                       .end = end_tiles,
                                       .multiply = multiply,
                                       .pack_right = nullptr,
                                       .transpose_left = nullptr};

}  // namespace cotune::kernels
