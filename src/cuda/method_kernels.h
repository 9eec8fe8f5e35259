/// Launches of what bottleneck adapters and diff pruning need beside low-rank products: GpuKernels' functions of the same names
/// (device/gpu_kernels.h) on a stream.
#pragma once

#include <cuda_runtime_api.h>

#include "device/gpu_kernels.h"

namespace cotune::cuda {

// column_sums.cu
void launch_column_sums(cudaStream_t stream, GpuType type, std::span<const GpuColumnSum> sums);

// activation.cu
void launch_activate(cudaStream_t stream, GpuType type, std::span<const GpuActivation> groups);
void launch_activate_backward(cudaStream_t stream, GpuType type, std::span<const GpuActivation> groups);

// sparse_products.cu
void launch_sparse_products(cudaStream_t stream, GpuType type, std::span<const GpuSparseProduct> groups,
                            const GpuSparseOperands& operands);

// sparse_values.cu
void launch_sparse_value_gradients(cudaStream_t stream, GpuType type, std::span<const GpuSparseGradient> groups,
                                   const GpuSparseGradientOperands& operands);

}  // namespace cotune::cuda
