#include "device/gpu_kernels.h"

namespace cotune {
namespace {
GpuKernels* active = nullptr;
}

GpuKernels* active_gpu_kernels() { return active; }
void set_active_gpu_kernels(GpuKernels* kernels) { active = kernels; }

}  // namespace cotune
