#include "ops/swiglu.h"

#include <ATen/ATen.h>

#include "kernels/swiglu.h"
#include "ops/backend.h"
#include "ops/low_rank_forms.h"

namespace cotune {

at::Tensor swiglu(const at::Tensor& gate_up) {
  const int64_t width = gate_up.size(1) / 2;
  if (use_kernels(gate_up)) {
    at::Tensor y = at::empty({gate_up.size(0), width}, gate_up.options());
    kernels::swiglu_forward(kernel_dtype(gate_up.scalar_type()), gate_up.const_data_ptr(), gate_up.stride(0),
                            gate_up.size(0), width, y.mutable_data_ptr(), y.stride(0));
    return y;
  }
  const at::ScalarType wide = accumulation_dtype(gate_up.scalar_type());
  const at::Tensor gate = gate_up.narrow(1, 0, width).to(wide), up = gate_up.narrow(1, width, width).to(wide);
  return at::silu(gate).mul_(up).to(gate_up.scalar_type());
}

SwigluGradient swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up) {
  const int64_t width = gate_up.size(1) / 2;
  SwigluGradient result;
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
  at::Tensor silu = at::silu(gate);
  result.y = (silu * up).to(dy.scalar_type());
  result.d_gate_up = at::empty_like(gate_up);
  result.d_gate_up.narrow(1, 0, width).copy_(at::silu_backward(d * up, gate));
  result.d_gate_up.narrow(1, width, width).copy_(silu.mul_(d));
  return result;
}

}  // namespace cotune
