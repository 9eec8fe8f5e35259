/// The operators of sparse_delta.h by kernels of the GPU (device/gpu_kernels.h). Each function returns false, and has done
/// nothing, where these do not take the tensors: another dtype than bf16 and f32. Internal to ops/.
#pragma once

#include <vector>

#include "ops/sparse_delta.h"

namespace cotune {

bool add_sparse_deltas_on_gpu(const std::vector<SparseDeltaGroup>& groups, const at::Tensor& x, at::Tensor& y);
bool add_sparse_delta_input_gradients_on_gpu(const std::vector<SparseDeltaGroup>& groups, const at::Tensor& dy,
                                             at::Tensor& dx);
bool add_sparse_delta_value_gradients_on_gpu(const std::vector<SparseDeltaGradient>& groups, const at::Tensor& x,
                                             const at::Tensor& dy);

}  // namespace cotune
