/// Softmax cross-entropy by rows:  loss_r = log Σ_c exp(z_rc) − z_r,label(r),
///                                 g_rc = (softmax(z_r)_c − [c = label(r)]) · scale_r.
/// Computed in f32, the gradient rounded once. A row whose label is negative has loss 0 and gradient 0.
#pragma once

#include <cstdint>

#include "kernels/matrix.h"

namespace cotune::kernels {

/// logits [rows, vocabulary] in logits_dtype, labels [rows], row_scale [rows]; loss [rows] f32 is written (unscaled).
/// gradient [rows, vocabulary] in gradient_dtype. It may be the same memory as logits if the row starts coincide:
/// same dtype and stride, or bf16 over f32 logits with gradient_stride = 2 · logits_stride. Strides in elements.
void softmax_cross_entropy(DType logits_dtype, const void* logits, int64_t logits_stride, int64_t rows,
                           int64_t vocabulary, const int32_t* labels, const float* row_scale, float* loss,
                           DType gradient_dtype, void* gradient, int64_t gradient_stride);

/// The losses alone (evaluation), bit for bit those of softmax_cross_entropy.
void softmax_cross_entropy_loss(DType logits_dtype, const void* logits, int64_t logits_stride, int64_t rows,
                                int64_t vocabulary, const int32_t* labels, float* loss);

}  // namespace cotune::kernels
