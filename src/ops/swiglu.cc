#include "ops/swiglu.h"

#include <ATen/ATen.h>

#include "kernels/swiglu.h"
#include "ops/backend.h"
#include "ops/low_rank_forms.h"

namespace cotune {
namespace {

/// 1 / (1 + e^−x). The last bits of at::sigmoid and at::silu depend on where the threads divide a tensor, those of exp do not.
at::Tensor logistic(const at::Tensor& x) { return x.neg().exp_().add_(1).reciprocal_(); }

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_up) {
  const int64_t width = gate_up.size(1) / 2;
  if (GpuKernels* gpu = gpu_kernels_for(gate_up)) {
    const at::Tensor rows = gate_up.contiguous();
    at::Tensor y = at::empty({gate_up.size(0), width}, gate_up.options());
    gpu->swiglu(gpu_type(gate_up.scalar_type()), rows.const_data_ptr(), rows.size(0), width, y.mutable_data_ptr());
    return y;
  }
  if (use_kernels(gate_up)) {
    at::Tensor y = at::empty({gate_up.size(0), width}, gate_up.options());
    kernels::swiglu_forward(kernel_dtype(gate_up.scalar_type()), gate_up.const_data_ptr(), gate_up.stride(0),
                            gate_up.size(0), width, y.mutable_data_ptr(), y.stride(0));
    return y;
  }
  const at::ScalarType wide = accumulation_dtype(gate_up.scalar_type());
  const at::Tensor gate = gate_up.narrow(1, 0, width).to(wide), up = gate_up.narrow(1, width, width).to(wide);
  return logistic(gate).mul_(gate).mul_(up).to(gate_up.scalar_type());
}

SwigluGradient swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up) {
  const int64_t width = gate_up.size(1) / 2;
  SwigluGradient result;
  if (GpuKernels* gpu = gpu_kernels_for(gate_up)) {
    const at::Tensor rows = gate_up.contiguous(), gradient = dy.contiguous();
    result.d_gate_up = at::empty_like(rows);
    result.y = at::empty_like(gradient);
    gpu->swiglu_backward(gpu_type(dy.scalar_type()), gradient.const_data_ptr(), rows.const_data_ptr(), rows.size(0),
                         width, result.d_gate_up.mutable_data_ptr(), result.y.mutable_data_ptr());
    return result;
  }
  if (use_kernels(gate_up)) {
    result.d_gate_up = at::empty_like(gate_up);
    result.y = at::empty_like(dy);
    kernels::swiglu_backward(kernel_dtype(dy.scalar_type()), dy.const_data_ptr(), dy.stride(0),
                             gate_up.const_data_ptr(), gate_up.stride(0), dy.size(0), width,
                             result.d_gate_up.mutable_data_ptr(), result.d_gate_up.stride(0),
                             result.y.mutable_data_ptr(), result.y.stride(0));
    return result;
  }
  const at::ScalarType wide = accumulation_dtype(gate_up.scalar_type());
  const at::Tensor gate = gate_up.narrow(1, 0, width).to(wide), up = gate_up.narrow(1, width, width).to(wide);
  const at::Tensor d = dy.to(wide);
  const at::Tensor share = logistic(gate);
  at::Tensor silu = gate * share;
  result.y = (silu * up).to(dy.scalar_type());
  result.d_gate_up = at::empty_like(gate_up);
  result.d_gate_up.narrow(1, 0, width).copy_((silu * (1 - share)).add_(share).mul_(d).mul_(up));
  result.d_gate_up.narrow(1, width, width).copy_(silu.mul_(d));
  return result;
}

}  // namespace cotune
