/// Attention products on AMX tiles: 16 × 16 f32 sums of pairs of bf16, two by two tiles at a time.
#include "kernels/amx_tile_config.h"
#include "kernels/attention_blocks.h"

namespace cotune::kernels {
namespace {

COTUNE_VECTORS_BEGIN
#pragma GCC target("amx-tile,amx-bf16")

void enter_tiles() {
  static const TileConfig configuration;
  _tile_loadconfig(&configuration);
}

void leave_tiles() { _tile_release(); }

/// Sums in tiles 0 to 3, left operands in 4 and 5, right operands in 6 and 7.
template <bool two_rows, bool two_columns>
void multiply_tiles(const ProductOperands& o, int64_t i, int64_t j) {
  float* c00 = o.c + i * o.ldc + j;
  float* c10 = c00 + 16 * o.ldc;
  const int64_t c_bytes = o.ldc * 4, a_bytes = o.lda * 4, b_bytes = o.ldb * 4;
  if (o.accumulate) {
    _tile_loadd(0, c00, c_bytes);
    if constexpr (two_columns) _tile_loadd(1, c00 + 16, c_bytes);
    if constexpr (two_rows) _tile_loadd(2, c10, c_bytes);
    if constexpr (two_rows && two_columns) _tile_loadd(3, c10 + 16, c_bytes);
  } else {
    _tile_zero(0);
    if constexpr (two_columns) _tile_zero(1);
    if constexpr (two_rows) _tile_zero(2);
    if constexpr (two_rows && two_columns) _tile_zero(3);
  }
  for (int64_t g = 0; g < o.groups; ++g) {
    const uint32_t* a = o.a + g * o.a_step + i * o.lda;
    const uint32_t* b = o.b + g * o.b_step + j;
    for (int64_t w = 0; w < o.words; w += 16) {
      _tile_loadd(4, a + w, a_bytes);
      _tile_loadd(6, b + w * o.ldb, b_bytes);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (two_columns) {
        _tile_loadd(7, b + w * o.ldb + 16, b_bytes);
        _tile_dpbf16ps(1, 4, 7);
      }
      if constexpr (two_rows) {
        _tile_loadd(5, a + 16 * o.lda + w, a_bytes);
        _tile_dpbf16ps(2, 5, 6);
        if constexpr (two_columns) _tile_dpbf16ps(3, 5, 7);
      }
    }
  }
  _tile_stored(0, c00, c_bytes);
  if constexpr (two_columns) _tile_stored(1, c00 + 16, c_bytes);
  if constexpr (two_rows) _tile_stored(2, c10, c_bytes);
  if constexpr (two_rows && two_columns) _tile_stored(3, c10 + 16, c_bytes);
}

struct TileProducts {
  using Element = uint16_t;
  static constexpr int64_t summed_multiple = 32;

  static void multiply(const ProductOperands& o) {
    asm volatile("" ::: "memory");  // g++ 12 does not know that tile loads read memory
    for (int64_t i = 0; i < o.m; i += 32) {
      for (int64_t j = 0; j < o.n; j += 32) {
        const bool two_rows = i + 32 <= o.m, two_columns = j + 32 <= o.n;
        if (two_rows && two_columns) {
          multiply_tiles<true, true>(o, i, j);
        } else if (two_rows) {
          multiply_tiles<true, false>(o, i, j);
        } else if (two_columns) {
          multiply_tiles<false, true>(o, i, j);
        } else {
          multiply_tiles<false, false>(o, i, j);
        }
      }
    }
  }
};

COTUNE_VECTORS_END

}  // namespace

const AttentionKernels& attention_bf16_amx() { return attention_by<TileProducts>(enter_tiles, leave_tiles); }

}  // namespace cotune::kernels
