#pragma once

#include <ATen/core/Tensor.h>

namespace cotune {

/// Root-mean-square normalisation (Zhang & Sennrich 2019):  y = x / sqrt(mean(x²) + eps) · weight.
///
/// x            [tokens, hidden]  compute dtype, contiguous
/// weight       [hidden]          accumulation dtype (f32, or f64 under f64)
/// inverse_rms  [tokens]          out: 1/rms, accumulation dtype, for the backward pass
/// Returns y    [tokens, hidden], rounded once. A row depends on that row alone.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, at::Tensor& inverse_rms);

/// y again, from the kept inverse_rms: equal bits.
at::Tensor rms_norm_again(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& inverse_rms);

/// Gradient of the input, added to the gradient that by-passes the norm (the residual stream):
///   dx = residual_gradient + inverse_rms · (dy·weight − x · mean(dy·weight · x) · inverse_rms²)
/// residual_gradient [tokens, hidden] compute dtype, or undefined for none. Returns dx in compute dtype, rounded once.
at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& inverse_rms, const at::Tensor& residual_gradient);

}  // namespace cotune
