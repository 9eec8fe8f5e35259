/// What low-rank factors add to rows outside a frozen product: bottleneck adapters, and LoRA's part of an
/// input gradient where dropout masks it. All jobs of a site in one call; a strip of rows is multiplied,
/// finished and added while it is near, so no tensor of that size exists.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/dropout.h"
#include "kernels/isa.h"
#include "kernels/matrix.h"

namespace cotune::kernels {

/// One job's part: y[rows, column_begin …] += mask ⊙ round(s·b) + bias.
struct ExpandGroup {
  RowRange rows;
  int64_t column_begin = 0;
  const void* s = nullptr;  ///< [rows.count(), ≥ b->k()], the dtype of the call; row 0 is row rows.begin of y
  int64_t s_stride = 0;
  const PackedMatrix* b = nullptr;       ///< [rank, n]; in parts where isa is amx_f32, as for product()
  const DropoutSite* dropout = nullptr;  ///< null: no mask
  const float* bias = nullptr;           ///< [n], or null
};

struct ExpandOptions {
  const void* residual = nullptr;  ///< added to the groups' rows, whose columns are then all of y's; or null
  int64_t residual_stride = 0;
  bool wide = false;  ///< y and residual are f32, whatever the dtype of the call
  const uint64_t* example_keys = nullptr;  ///< [rows of y], where a group has a mask
  const int32_t* positions = nullptr;
};

/// y[row] = round(residual + y + mask ⊙ round(s·b) + bias) for every row of every group; f32 inside, in this
/// order. Groups have disjoint rows or the same; of the same rows they are added in the order given, each
/// rounded (and at most one where there is a residual). A row's bits depend on that row, its groups and isa
/// only.
void expand_add(Isa isa, DType dtype, void* y, int64_t y_stride, std::span<const ExpandGroup> groups,
                const ExpandOptions& options = {});

}  // namespace cotune::kernels
