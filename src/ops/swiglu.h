#pragma once

#include <ATen/core/Tensor.h>

namespace cotune {

/// Gated activation (Shazeer 2020):  y = silu(gate) · up.
/// gate_up [tokens, 2·n], gate columns first. Returns y [tokens, n]; f32 inside, rounded once.
at::Tensor swiglu(const at::Tensor& gate_up);

/// Backward of swiglu, and y once more (the adapters' gradients of the next product need it, so it is not kept).
///   d_up = dy · silu(gate),  d_gate = dy · up · σ(gate)·(1 + gate·(1 − σ(gate)))
struct SwigluGradient {
  at::Tensor d_gate_up;  ///< [tokens, 2·n]
  at::Tensor y;          ///< [tokens, n], equal bits to the forward result
};
SwigluGradient swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up);

}  // namespace cotune
