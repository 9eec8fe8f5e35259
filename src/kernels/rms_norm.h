/// Root-mean-square normalisation (Zhang & Sennrich 2019):  y = x / sqrt(mean(x²) + eps) · weight.
///
/// x, y, dy, dx [tokens, hidden] in dtype, contiguous; weight [hidden] f32; inverse_rms [tokens] f32. In the forward pass x may be f32
/// where y is not: a residual stream that is not rounded.
/// Computed in f32 and rounded once (Hugging Face rounds before the multiplication by the weight as well).
/// The weight is frozen: it has no gradient.
#pragma once

#include <cstdint>

#include "kernels/matrix.h"

namespace cotune::kernels {

/// Writes y, and inverse_rms = 1 / sqrt(mean(x²) + eps) for the backward pass; and x, rounded to dtype, where `kept` is not null.
void rms_norm_forward(DType x_dtype, const void* x, int64_t tokens, int64_t hidden, const float* weight, float eps, DType dtype, void* y,
                      float* inverse_rms, void* kept = nullptr);

/// The same y again, bit for bit, from x and inverse_rms; from a rounded x the y of that.
void rms_norm_recompute(DType dtype, const void* x, int64_t tokens, int64_t hidden, const float* weight,
                        const float* inverse_rms, void* y);

/// dx = residual_gradient + r · (weight ⊙ dy) − x · r³ / hidden · Σ(weight ⊙ dy ⊙ x),  r = inverse_rms.
/// One rounding. residual_gradient may be null (zero); dx may be the same memory as residual_gradient or dy.
void rms_norm_backward(DType dtype, const void* dy, const void* x, int64_t tokens, int64_t hidden, const float* weight,
                       const float* inverse_rms, const void* residual_gradient, void* dx);

}  // namespace cotune::kernels
