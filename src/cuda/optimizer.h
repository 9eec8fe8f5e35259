/// Launches of the optimizer's kernels: GpuKernels' functions of the same names (device/gpu_kernels.h) on a stream.
#pragma once

#include <cuda_runtime_api.h>

#include "device/gpu_kernels.h"

namespace cotune::cuda {

void launch_adamw(cudaStream_t stream, std::span<const GpuParameter> parameters, const GpuAdamw& settings,
                  const bool* sound, const double* multiplier);

void launch_square_sums(cudaStream_t stream, std::span<const GpuArray> arrays, double* sums);

}  // namespace cotune::cuda
