#include "ops/dropout.h"

#include <ATen/ATen.h>

#include "kernels/dropout.h"
#include "ops/backend.h"
#include "ops/low_rank_forms.h"

namespace cotune {
namespace {

kernels::DropoutSite site_of(const DropoutMask& mask) { return {mask.key, static_cast<float>(mask.probability)}; }

kernels::DropoutRows rows_of(const DropoutMask& mask, int64_t features) {
  return {mask.positions.size(0), features, reinterpret_cast<const uint64_t*>(mask.example_keys.const_data_ptr<int64_t>()),
          mask.positions.const_data_ptr<int32_t>()};
}

/// The mask as a tensor, for the ATen path: [rows, features], 0 or 1/(1 − p).
at::Tensor dense_mask(const DropoutMask& mask, const at::Tensor& like) {
  const at::Tensor keys = mask.example_keys.cpu(), positions = mask.positions.cpu();
  at::Tensor dense = at::empty({like.size(0), like.size(1)}, at::kDouble);
  double* values = dense.mutable_data_ptr<double>();
  const kernels::DropoutSite site = site_of(mask);
  const double kept = 1.0 / (1.0 - mask.probability);
  for (int64_t row = 0; row < like.size(0); ++row) {
    const auto key = static_cast<uint64_t>(keys.const_data_ptr<int64_t>()[row]);
    const int32_t position = positions.const_data_ptr<int32_t>()[row];
    for (int64_t feature = 0; feature < like.size(1); ++feature) {
      *values++ = kernels::dropout_keeps(site, key, position, feature) ? kept : 0.0;
    }
  }
  return dense.to(like.device(), accumulation_dtype(like.scalar_type()));
}

}  // namespace

void apply_dropout(const DropoutMask& mask, const at::Tensor& x, at::Tensor& y) {
  if (use_kernels(x)) {
    kernels::dropout_forward(kernel_dtype(x.scalar_type()), site_of(mask), rows_of(mask, x.size(1)),
                             x.const_data_ptr(), x.stride(0), y.mutable_data_ptr(), y.stride(0));
    return;
  }
  const at::Tensor dense = dense_mask(mask, x);
  y.copy_(x.to(dense.scalar_type()) * dense);
}

void add_dropout_gradient(const DropoutMask& mask, const at::Tensor& dy, at::Tensor& dx) {
  if (use_kernels(dx)) {
    kernels::dropout_backward_add(kernel_dtype(dx.scalar_type()), site_of(mask), rows_of(mask, dx.size(1)),
                                  dy.const_data_ptr(), dy.stride(0), dx.mutable_data_ptr(), dx.stride(0));
    return;
  }
  const at::Tensor dense = dense_mask(mask, dx);
  dx.copy_(dx.to(dense.scalar_type()) + dy.to(dense.scalar_type()) * dense);
}

}  // namespace cotune
