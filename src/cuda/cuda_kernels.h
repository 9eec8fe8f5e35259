#pragma once

#include "device/gpu_kernels.h"

namespace cotune {

/// The kernels of this plugin, on the calling thread's current stream. Lives as long as the process.
GpuKernels& cuda_kernels();

}  // namespace cotune
