/// Which implementation an operator uses: our CPU kernels where the processor, dtype and shapes allow, ATen elsewhere.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/isa.h"

namespace cotune {

/// The instruction set of our kernels for tensors of this dtype on this device; Isa::none: use ATen.
kernels::Isa kernel_isa(at::ScalarType dtype, at::Device device);

inline bool use_kernels(const at::Tensor& tensor) {
  return kernel_isa(tensor.scalar_type(), tensor.device()) != kernels::Isa::none;
}

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
