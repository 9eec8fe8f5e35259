/// Inside the AMX kernels: the tile registers and the instructions on them. Included by translation units
/// compiled for AMX, each of which gets its own copy. Registers: sums 0 1 (first tile of rows), 2 3 (second);
/// left operands 4, 5; right operands 6, 7.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/amx_tile_config.h"
#include "kernels/matrix_kernels.h"

namespace cotune::kernels {
namespace {

constexpr int64_t step = 32;             // k per tile product
constexpr int64_t row_pair_bytes = 128;  // [32 columns][2] of a panel
constexpr int64_t half_panel = 64;
constexpr int64_t step_tile_bytes = step / 2 * row_pair_bytes;  // 32 of k of a panel in bf16
constexpr int sum_stride = 128;                                 // bytes of a row of 32 sums

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

inline void configure(int first, int second) {
  const int wanted = first * 32 + second;
  if (configured_heights == wanted) return;
  TileConfig config;
  config.rows[0] = config.rows[1] = config.rows[4] = static_cast<uint8_t>(first);
  config.rows[2] = config.rows[3] = config.rows[5] = static_cast<uint8_t>(second == 0 ? 16 : second);
  asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
  configured_heights = wanted;
}
inline void configure(const Strip& strip) {
  memory_is_read();
  configure(strip.tiles[0].height, strip.tile_count == 2 ? strip.tiles[1].height : 0);
}

inline void begin_tiles() {
  configured_heights = 0;
}
inline void end_tiles() {
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

/// Calls write(tile, row of the tile, the row's 32 sums) for rows [row, end) of a strip's sums of one panel;
/// returns where it stopped, at the latest at the strip's end.
template <typename Write>
inline int for_rows(const Strip& strip, const float* sums, int row, int end, Write write) {
  const int first_height = strip.tiles[0].height;
  const int height = first_height + strip.tiles[1].height;
  if (end > height) end = height;
  for (; row < end; ++row) {
    const bool second = row >= first_height;
    const int in_tile = second ? row - first_height : row;
    write(strip.tiles[second], in_tile, sums + ((second ? 16 : 0) + in_tile) * 32);
  }
  return end;
}

}  // namespace
}  // namespace cotune::kernels
