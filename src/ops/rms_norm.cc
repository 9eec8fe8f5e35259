#include "ops/rms_norm.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "kernels/rms_norm.h"
#include "ops/backend.h"
#include "ops/low_rank_forms.h"

namespace cotune {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, at::ScalarType compute, at::Tensor& inverse_rms,
                    at::Tensor* kept) {
  const bool rounds = x.scalar_type() != compute;
  if (kept != nullptr && !rounds) *kept = x;
  GpuKernels* gpu = gpu_kernels_for(compute, x.device());
  const bool on_cpu = gpu == nullptr && kernel_isa(compute, x.device()) != kernels::Isa::none;
  if (gpu == nullptr && !on_cpu) {
    const at::Tensor wide = x.to(weight.scalar_type());
    inverse_rms = (wide.square().mean(-1) + eps).rsqrt();
    if (kept != nullptr) *kept = x.to(compute);
    return (wide * inverse_rms.unsqueeze(1)).mul_(weight).to(compute);
  }
  COTUNE_CHECK(x.is_contiguous());
  at::Tensor y = at::empty(x.sizes(), x.options().dtype(compute));
  inverse_rms = at::empty({x.size(0)}, weight.options());
  void* rounded = nullptr;
  if (kept != nullptr && rounds) {
    *kept = at::empty_like(y);
    rounded = kept->mutable_data_ptr();
  }
  if (on_cpu) {
    kernels::rms_norm_forward(kernel_dtype(x.scalar_type()), x.const_data_ptr(), x.size(0), x.size(1), weight.const_data_ptr<float>(),
                              static_cast<float>(eps), kernel_dtype(compute), y.mutable_data_ptr(), inverse_rms.mutable_data_ptr<float>(),
                              rounded);
  } else {
    gpu->rms_norm(gpu_type(x.scalar_type()), x.const_data_ptr(), x.size(0), x.size(1), weight.const_data_ptr<float>(),
                  static_cast<float>(eps), gpu_type(compute), y.mutable_data_ptr(), inverse_rms.mutable_data_ptr<float>(), rounded);
  }
  return y;
}

at::Tensor rms_norm_again(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& inverse_rms) {
  if (GpuKernels* gpu = gpu_kernels_for(x)) {
    COTUNE_CHECK(x.is_contiguous());
    at::Tensor y = at::empty_like(x);
    gpu->rms_norm_again(gpu_type(x.scalar_type()), x.const_data_ptr(), x.size(0), x.size(1),
                        weight.const_data_ptr<float>(), inverse_rms.const_data_ptr<float>(), y.mutable_data_ptr());
    return y;
  }
  if (use_kernels(x)) {
    at::Tensor y = at::empty_like(x);
    kernels::rms_norm_recompute(kernel_dtype(x.scalar_type()), x.const_data_ptr(), x.size(0), x.size(1),
                                weight.const_data_ptr<float>(), inverse_rms.const_data_ptr<float>(),
                                y.mutable_data_ptr());
    return y;
  }
  return (x.to(weight.scalar_type()) * inverse_rms.unsqueeze(1)).mul_(weight).to(x.scalar_type());
}

at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& inverse_rms, const at::Tensor& residual_gradient) {
  if (GpuKernels* gpu = gpu_kernels_for(x)) {
    COTUNE_CHECK(x.is_contiguous());
    const at::Tensor gradient = dy.contiguous();
    const at::Tensor residual = residual_gradient.defined() ? residual_gradient.contiguous() : residual_gradient;
    at::Tensor dx = at::empty_like(x);
    gpu->rms_norm_backward(gpu_type(x.scalar_type()), gradient.const_data_ptr(), x.const_data_ptr(), x.size(0),
                           x.size(1), weight.const_data_ptr<float>(), inverse_rms.const_data_ptr<float>(),
                           residual.defined() ? residual.const_data_ptr() : nullptr, dx.mutable_data_ptr());
    return dx;
  }
  if (use_kernels(x)) {
    at::Tensor dx = at::empty_like(x);
    kernels::rms_norm_backward(kernel_dtype(x.scalar_type()), dy.const_data_ptr(), x.const_data_ptr(), x.size(0),
                               x.size(1), weight.const_data_ptr<float>(), inverse_rms.const_data_ptr<float>(),
                               residual_gradient.defined() ? residual_gradient.const_data_ptr() : nullptr,
                               dx.mutable_data_ptr());
    return dx;
  }
  const at::Tensor wide = x.to(weight.scalar_type());
  const at::Tensor scaled = dy.to(weight.scalar_type()) * weight;
  const at::Tensor inverse = inverse_rms.unsqueeze(1);
  const at::Tensor along_x = (scaled * wide).mean(-1, true).mul_(inverse.square());
  at::Tensor dx = at::addcmul(scaled, wide, along_x, -1).mul_(inverse);
  if (residual_gradient.defined()) dx.add_(residual_gradient);
  return dx.to(x.scalar_type());
}

}  // namespace cotune
