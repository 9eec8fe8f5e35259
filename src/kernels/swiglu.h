/// SwiGLU (Shazeer 2020):  y = silu(gate) ⊙ up,  silu(g) = g / (1 + exp(−g)).
///
/// gate_up [tokens, 2·width]: gate columns first, then up columns. Computed in f32 (for bf16 with σ to a relative 6e-5), rounded
/// once. Strides in elements.
#pragma once

#include <cstdint>

#include "kernels/matrix.h"

namespace cotune::kernels {

/// y [tokens, width].
void swiglu_forward(DType dtype, const void* gate_up, int64_t gate_up_stride, int64_t tokens, int64_t width, void* y,
                    int64_t y_stride);

/// dgate = dy ⊙ up ⊙ σ(gate) (1 + gate (1 − σ(gate))),  dup = dy ⊙ silu(gate), written to dgate_up [tokens, 2·width],
/// which may be the same memory as gate_up. Where y is not null, the forward result is written too, bit for bit, so that
/// it need not be kept (y may be the same memory as dy).
void swiglu_backward(DType dtype, const void* dy, int64_t dy_stride, const void* gate_up, int64_t gate_up_stride,
                     int64_t tokens, int64_t width, void* dgate_up, int64_t dgate_up_stride, void* y, int64_t y_stride);

}  // namespace cotune::kernels
