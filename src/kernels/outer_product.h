/// Sums of outer products over tokens: the gradients of low-rank factors (mLoRA §3.3.1, Eq 3 and 4).
///   ∇Aᵢ = gᵢᵀ·xᵢ with A as [rank, in]: left g, right x.      ∇Bᵢ = sᵢᵀ·∇hᵢ with B as [rank, out]: left s,
///   right ∇h.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/isa.h"
#include "kernels/matrix.h"

namespace cotune::kernels {

/// One atom's part in one gradient: gradient[i, j] += scale · Σ_{t in rows} left[t - rows.begin, i] ·
/// right[t, j].
struct OuterGroup {
  RowRange rows;               ///< rows of right
  const void* left = nullptr;  ///< [rows.count(), left_columns], the dtype of the call
  int64_t left_stride = 0;
  int64_t left_columns = 0;   ///< the rank, 0 to 512
  float* gradient = nullptr;  ///< [left_columns, columns], f32
  int64_t gradient_stride = 0;
  float scale = 1;
};

/// Adds every group's sum to its gradient. right [rows of the microbatch, columns] in `dtype`, strides in
/// elements.
///
/// A group's sum is formed from zero in an order that its own rows alone decide, multiplied by scale and then
/// added, so its bits depend neither on the other groups nor on where its rows stand in the microbatch nor on
/// threads. Groups with the same gradient pointer are added in the order given; gradients that overlap
/// otherwise are not allowed. Several gradients for the same rows (q, k, v share x): give those groups one
/// after another; the rows of right are then arranged once for all of them.
void outer_products(Isa isa, DType dtype, const void* right, int64_t right_stride, int64_t columns,
                    std::span<const OuterGroup> groups);

}  // namespace cotune::kernels
