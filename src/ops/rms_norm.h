#pragma once

#include <ATen/core/Tensor.h>

namespace cotune {

/// Root-mean-square normalisation (Zhang & Sennrich 2019):  y = x / sqrt(mean(x²) + eps) · weight.
///
/// x            [tokens, hidden]  the residual stream, accumulation dtype (f32, or f64 under f64), or of compute dtype; contiguous
/// weight       [hidden]          accumulation dtype
/// compute                        of the result
/// inverse_rms  [tokens]          out: 1/rms, accumulation dtype, for the backward pass
/// kept         [tokens, hidden]  out, unless null: what the backward pass needs of x, compute dtype: x itself, or x rounded
/// Returns y    [tokens, hidden], compute dtype, rounded once. A row depends on that row alone.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, at::ScalarType compute, at::Tensor& inverse_rms,
                    at::Tensor* kept = nullptr);

/// y again, from what was kept: equal bits where x was of compute dtype, else those of the rounded x.
at::Tensor rms_norm_again(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& inverse_rms);

/// Gradient of the input, added to the gradient that by-passes the norm (the residual stream):
///   dx = residual_gradient + inverse_rms · (dy·weight − x · mean(dy·weight · x) · inverse_rms²)
/// residual_gradient [tokens, hidden] compute dtype, or undefined for none. Returns dx in compute dtype, rounded once.
at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& inverse_rms, const at::Tensor& residual_gradient);

}  // namespace cotune
