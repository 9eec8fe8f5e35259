/// Launches of the low-rank kernels: GpuKernels' functions of the same names (device/gpu_kernels.h) on a stream.
#pragma once

#include <cuda_runtime_api.h>

#include "device/gpu_kernels.h"

namespace cotune::cuda {

void launch_shrink(cudaStream_t stream, std::span<const GpuShrink> groups, const void* x, int64_t x_stride,
                   int64_t width);
void launch_expand(cudaStream_t stream, std::span<const GpuExpandTerm> terms, const GpuExpandStart& start,
                   GpuMaskRows mask_rows, void* y, int64_t y_stride, int64_t rows, int64_t columns);
void launch_outer_products(cudaStream_t stream, std::span<const GpuOuter> groups, const void* right,
                           int64_t right_stride, int64_t width, const GpuMemory& memory);

}  // namespace cotune::cuda
