/// Inside the matrix kernels: what the blocking code (product, low_rank, outer_product) asks of one
/// instruction set.
#pragma once

#include <cstdint>

#include "kernels/isa.h"
#include "kernels/matrix.h"

namespace cotune::kernels {

/// A low-rank term as one tile of rows sees it.
struct TileTerm {
  const char* s = nullptr;       ///< the tile's first row
  int64_t s_stride = 0;          ///< bytes
  int64_t k = 0;                 ///< padded rank
  const char* panels = nullptr;  ///< of the term's b
  int64_t panel_bytes = 0;
  int parts = 0;  ///< of the term's b
  int64_t panel_begin = 0, panel_end = 0;  ///< panels of the frozen product that the term covers
};

/// Up to MatrixKernels::tile_rows rows of x and of y.
struct Tile {
  const char* a = nullptr;         ///< left operand, at the first k of the block
  char* y = nullptr;               ///< at the strip's first column
  const char* residual = nullptr;  ///< at the strip's first column, or null
  const TileTerm* terms = nullptr;
  int term_count = 0;
  int height = 0;
};

/// Memory that is read later on, brought into the second-level cache little by little.
struct Ahead {
  const char* at = nullptr;
  int64_t step = 0;  ///< bytes at a time; of more than a line the first is brought, and the processor finds the others

  void bring() {
    __builtin_prefetch(at, 0, 2);
    at += step;
  }
};

/// One or two tiles of rows times a run of panels, over one block of k.
struct Strip {
  Tile tiles[2];
  int tile_count = 0;
  int64_t a_stride = 0;     ///< bytes between rows of the left operand
  int64_t k = 0;            ///< of this block; a multiple of depth_unit
  const char* b = nullptr;  ///< first panel, at the first k of the block
  int b_parts = 0;          ///< PackedMatrix::parts
  int64_t panel_bytes = 0;  ///< from one panel to the next
  int64_t first_panel = 0;  ///< index of the first panel in the whole product, for the terms
  int64_t panel_count = 0;
  int64_t columns = 0;  ///< columns of y from the first panel on; beyond them nothing, or zero, is written

  /// What is read after this strip, of every panel from `ahead` + its index here · panel_bytes on: the kernels of vectors bring it near while
  /// they compute, those of AMX do not. Null: nothing.
  const char* ahead = nullptr;
  int64_t ahead_bytes = 0;
  /// Part `index` of `parts` of it, of one panel, in `steps` calls of bring().
  Ahead ahead_of(int64_t panel, int64_t steps, int64_t index = 0, int64_t parts = 1) const {
    if (ahead == nullptr || steps == 0) return {b + panel * panel_bytes, 0};
    const int64_t bytes = ahead_bytes / parts;
    return {ahead + panel * panel_bytes + index * bytes, (bytes + steps - 1) / steps};
  }

  /// Blocks of k before the last leave their sums here: [panel_count][2][tile_rows][32] f32, 64-byte aligned.
  float* partial = nullptr;
  bool first = true, last = true;  ///< block of k

  /// y = round(scale · sum + bias + residual), or y (f32) += scale · sum.
  bool accumulate = false;
  bool wide = false;       ///< y and residual are f32, and nothing is rounded
  bool zero_tail = false;  ///< write zero into the last panel's columns beyond `columns`
  float scale = 1;
  int64_t y_stride = 0, residual_stride = 0;  ///< bytes
  const char* bias = nullptr;                 ///< at the first column, or null
};

struct MatrixKernels {
  int tile_rows;        ///< largest height of a tile
  int tiles_per_strip;  ///< how many tiles a strip should have, to read B once for all of them
  int64_t k_block;      ///< k of a block, such that a strip's left operand stays in the first-level cache
  DType dtype;
  int64_t depth_unit;          ///< k of the operands is padded with zeros to a multiple of this
  int64_t left_element_bytes;  ///< of the left operand as `multiply` reads it, and transpose_left writes it
  bool in_parts = false;       ///< packed operands are f32 in bf16 parts
  /// x [k] → a row of the left operand, k padded; null where rows of x are read as they are.
  void (*convert_left)(const char* x, int64_t k, char* target);
  /// Called by every thread around its strips.
  void (*begin)();
  void (*end)();
  void (*multiply)(const Strip& strip);
  /// right [rows, columns] → panels of 32 columns in PackedMatrix order with the rows as k; padded_rows
  /// (bf16: a multiple of 32) are written, the last ones as zero. Columns beyond `columns` in the last panel
  /// are zero. Null, as transpose_left, in kernels that take packed operands only.
  void (*pack_right)(const char* right, int64_t stride_bytes, int64_t rows, int64_t padded_rows,
                     int64_t columns, char* panels);
  /// left [rows, columns] → leftᵀ [columns, padded_rows], contiguous rows of target_stride bytes, padded with
  /// zero.
  void (*transpose_left)(const char* left, int64_t stride_bytes, int64_t rows, int64_t padded_rows,
                         int64_t columns, char* target, int64_t target_stride);
};

extern const MatrixKernels avx2_kernels;
extern const MatrixKernels avx2_bf16_kernels;
extern const MatrixKernels avx512_kernels;
extern const MatrixKernels avx512_widened_kernels;
extern const MatrixKernels avx512_bf16_kernels;
extern const MatrixKernels amx_bf16_kernels;
extern const MatrixKernels amx_f32_kernels;

/// The kernels of an instruction set; COTUNE_CHECKs that it computes in `dtype`.
const MatrixKernels& matrix_kernels(Isa isa, DType dtype);
/// The same for products that amx_f32 leaves to vectors: a few columns, or operands that are packed for one use.
const MatrixKernels& narrow_matrix_kernels(Isa isa, DType dtype);

constexpr int64_t padded_depth(int64_t k, int64_t unit) {
  return (k + unit - 1) / unit * unit;
}

}  // namespace cotune::kernels
