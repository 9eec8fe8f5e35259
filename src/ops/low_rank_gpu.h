/// The operators of low_rank.h and the low-rank side of frozen products by kernels of the GPU (device/gpu_kernels.h).
/// Each function returns false, and has done nothing, where these do not take the tensors: another dtype than bf16, or
/// rows that do not begin at multiples of 16 bytes. Internal to ops/.
#pragma once

#include <vector>

#include "ops/frozen_product.h"
#include "ops/low_rank.h"

namespace cotune {

/// Columns of s are multiples of this where the GPU's kernels may run.
inline constexpr int64_t gpu_rank_multiple = 8;

/// Fills the groups' s, which are there already.
bool shrink_on_gpu(const at::Tensor& x, const std::vector<ShrinkGroup>& groups);
bool add_expansions_on_gpu(at::Tensor& y, const std::vector<ExpandGroup>& groups, const ExpandOptions& options);
bool accumulate_gradients_on_gpu(const at::Tensor& right, const std::vector<GradientGroup>& groups);
/// In bf16 and f32, of any rows.
bool accumulate_row_sums_on_gpu(const std::vector<RowSum>& sums);

/// y = the sum of its terms, rounded once, and zero where there are none. y's values are not read.
bool start_product_on_gpu(at::Tensor& y, const std::vector<LowRankTerm>& terms);

}  // namespace cotune
