#pragma once

#include "device/gpu_kernels.h"

namespace cotune {

/// The kernels of this plugin for a device, on the calling thread's current stream there. Lives as long as the process.
GpuKernels& cuda_kernels(int index);

}  // namespace cotune
