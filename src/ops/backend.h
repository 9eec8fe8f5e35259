/// Which implementation an operator uses: our kernels of the CPU or the GPU where device, dtype and shapes allow, ATen
/// elsewhere.
#pragma once

#include <ATen/core/Tensor.h>

#include "device/gpu_kernels.h"
#include "kernels/isa.h"

namespace cotune {

/// The instruction set of our kernels for tensors of this dtype on this device; Isa::none: use ATen.
kernels::Isa kernel_isa(at::ScalarType dtype, at::Device device);

inline bool use_kernels(const at::Tensor& tensor) {
  return kernel_isa(tensor.scalar_type(), tensor.device()) != kernels::Isa::none;
}

/// Kernels for tensors of this dtype on this device: a GPU's in bf16 and f32, if they are there; nullptr: use ATen.
GpuKernels* gpu_kernels_for(at::ScalarType dtype, at::Device device);
inline GpuKernels* gpu_kernels_for(const at::Tensor& tensor) {
  return gpu_kernels_for(tensor.scalar_type(), tensor.device());
}
/// Of a dtype that gpu_kernels_for takes.
GpuType gpu_type(at::ScalarType dtype);

/// While one lives, every operator of the process takes the ATen path (`--portable-kernels`, tests).
class PortableKernels {
 public:
  PortableKernels();
  ~PortableKernels();
  PortableKernels(const PortableKernels&) = delete;
  PortableKernels& operator=(const PortableKernels&) = delete;
};

/// The dtype of adapters, gradients and accumulations for a compute dtype: f32, or f64 under f64.
at::ScalarType accumulation_dtype(at::ScalarType compute);

}  // namespace cotune
