/// The narrow products of low-rank adapters: s = scale · x·A for all jobs at one site in one call.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/isa.h"
#include "kernels/matrix.h"

namespace cotune::kernels {

/// One job's rows at one site.
struct ShrinkGroup {
  RowRange rows;  ///< rows of x; several groups may have the same or overlapping rows
  const PackedMatrix* a =
      nullptr;  ///< [k, rank], the dtype of the call; several factors may stand side by side
  /// [rows.count(), a->padded_n()], the dtype of the call; row 0 is row rows.begin of x. Columns from a->n()
  /// on are written as zero.
  void* s = nullptr;
  int64_t s_stride = 0;
  float scale = 1;
};

/// s = round(scale · x[rows, :]·A) for every group: f32 sums with k ascending, one multiplication, one
/// rounding.
///
/// x [rows of the microbatch, k]: the groups' dtype, stride in elements. A row's bits depend on that row, its
/// factor and isa only. Isa, threads and memory as for product(). All groups have the same k and dtype.
void shrink(Isa isa, const void* x, int64_t x_stride, std::span<const ShrinkGroup> groups);

}  // namespace cotune::kernels
