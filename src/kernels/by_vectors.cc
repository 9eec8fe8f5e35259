/// The kernels of the folder `vectors`: each call goes to the compilation for the instruction set that computes in its dtype.
#include "base/error.h"
#include "kernels/attention.h"
#include "kernels/column_sums.h"
#include "kernels/cross_entropy.h"
#include "kernels/dropout.h"
#include "kernels/expand.h"
#include "kernels/isa.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/sparse_delta.h"
#include "kernels/swiglu.h"

/// Declares avx2::name, avx512_widened::name and avx512::name, and kernels::name_for(vectors).
#define COTUNE_BY_VECTORS(name)                                                                              \
  namespace avx2 {                                                                                           \
  decltype(kernels::name) name;                                                                              \
  }                                                                                                          \
  namespace avx512_widened {                                                                                 \
  decltype(kernels::name) name;                                                                              \
  }                                                                                                          \
  namespace avx512 {                                                                                         \
  decltype(kernels::name) name;                                                                              \
  }                                                                                                          \
  static decltype(&kernels::name) name##_for(Vectors vectors) {                                              \
    return vectors == Vectors::avx2 ? &avx2::name : vectors == Vectors::avx512 ? &avx512::name : &avx512_widened::name; \
  }

namespace cotune::kernels {

COTUNE_BY_VECTORS(rms_norm_forward)
COTUNE_BY_VECTORS(rms_norm_recompute)
COTUNE_BY_VECTORS(rms_norm_backward)
COTUNE_BY_VECTORS(swiglu_forward)
COTUNE_BY_VECTORS(swiglu_backward)
COTUNE_BY_VECTORS(rotate_in_place)
COTUNE_BY_VECTORS(softmax_cross_entropy)
COTUNE_BY_VECTORS(softmax_cross_entropy_loss)
COTUNE_BY_VECTORS(dropout_forward)
COTUNE_BY_VECTORS(column_sums)
COTUNE_BY_VECTORS(expand_add)
COTUNE_BY_VECTORS(sparse_delta_forward)
COTUNE_BY_VECTORS(sparse_delta_input_gradient)
COTUNE_BY_VECTORS(sparse_delta_value_gradient)

namespace {

Vectors vectors_for(DType dtype) { return dtype == DType::bf16 ? vectors_for_bf16() : vectors_for_f32(); }

Vectors vectors_of(Isa isa, DType dtype) {
  if (isa == Isa::avx2 || isa == Isa::avx2_bf16) return Vectors::avx2;
  const CpuFeatures& features = cpu_features();
  if (isa == Isa::avx512_widened) {
    COTUNE_CHECK(features.avx512, "this processor does not have {}", to_string(isa));
    return Vectors::avx512_widened;
  }
  COTUNE_CHECK(dtype == DType::bf16 ? features.avx512_bf16 : features.avx512, "this processor does not have {}", to_string(isa));
  return Vectors::avx512;
}

}  // namespace

void rms_norm_forward(DType x_dtype, const void* x, int64_t tokens, int64_t hidden, const float* weight, float eps, DType dtype, void* y,
                      float* inverse_rms, void* kept) {
  rms_norm_forward_for(vectors_for(dtype))(x_dtype, x, tokens, hidden, weight, eps, dtype, y, inverse_rms, kept);
}

void rms_norm_recompute(DType dtype, const void* x, int64_t tokens, int64_t hidden, const float* weight, const float* inverse_rms, void* y) {
  rms_norm_recompute_for(vectors_for(dtype))(dtype, x, tokens, hidden, weight, inverse_rms, y);
}

void rms_norm_backward(DType dtype, const void* dy, const void* x, int64_t tokens, int64_t hidden, const float* weight, const float* inverse_rms,
                       const void* residual_gradient, void* dx) {
  rms_norm_backward_for(vectors_for(dtype))(dtype, dy, x, tokens, hidden, weight, inverse_rms, residual_gradient, dx);
}

void swiglu_forward(DType dtype, const void* gate_up, int64_t gate_up_stride, int64_t tokens, int64_t width, void* y, int64_t y_stride) {
  swiglu_forward_for(vectors_for(dtype))(dtype, gate_up, gate_up_stride, tokens, width, y, y_stride);
}

void swiglu_backward(DType dtype, const void* dy, int64_t dy_stride, const void* gate_up, int64_t gate_up_stride, int64_t tokens, int64_t width,
                     void* dgate_up, int64_t dgate_up_stride, void* y, int64_t y_stride) {
  swiglu_backward_for(vectors_for(dtype))(dtype, dy, dy_stride, gate_up, gate_up_stride, tokens, width, dgate_up, dgate_up_stride, y, y_stride);
}

void rotate_in_place(DType dtype, void* x, int64_t tokens, int64_t stride, int64_t heads, int64_t head_dim, const int32_t* positions,
                     const float* cosine, const float* sine, RopeDirection direction) {
  rotate_in_place_for(vectors_for(dtype))(dtype, x, tokens, stride, heads, head_dim, positions, cosine, sine, direction);
}

void softmax_cross_entropy(DType logits_dtype, const void* logits, int64_t logits_stride, int64_t rows, int64_t vocabulary, const int32_t* labels,
                           const float* row_scale, float* loss, DType gradient_dtype, void* gradient, int64_t gradient_stride) {
  const bool rounds = logits_dtype == DType::bf16 || gradient_dtype == DType::bf16;
  softmax_cross_entropy_for(vectors_for(rounds ? DType::bf16 : DType::f32))(logits_dtype, logits, logits_stride, rows, vocabulary, labels, row_scale,
                                                                            loss, gradient_dtype, gradient, gradient_stride);
}

void softmax_cross_entropy_loss(DType logits_dtype, const void* logits, int64_t logits_stride, int64_t rows, int64_t vocabulary,
                                const int32_t* labels, float* loss) {
  softmax_cross_entropy_loss_for(vectors_for(logits_dtype))(logits_dtype, logits, logits_stride, rows, vocabulary, labels, loss);
}

void dropout_forward(DType dtype, std::span<const DropoutGroup> groups, const DropoutRows& rows, const void* x, int64_t x_stride, void* y,
                     int64_t y_stride) {
  dropout_forward_for(vectors_for(dtype))(dtype, groups, rows, x, x_stride, y, y_stride);
}

void column_sums(DType dtype, std::span<const ColumnSum> sums) { column_sums_for(vectors_for(dtype))(dtype, sums); }

void expand_add(Isa isa, DType dtype, void* y, int64_t y_stride, std::span<const ExpandGroup> groups, const ExpandOptions& options) {
  expand_add_for(vectors_of(isa, dtype))(isa, dtype, y, y_stride, groups, options);
}

void sparse_delta_forward(DType dtype, std::span<const SparseRows> groups, const SparseOperands& operands) {
  sparse_delta_forward_for(vectors_for(dtype))(dtype, groups, operands);
}

void sparse_delta_input_gradient(DType dtype, std::span<const SparseRows> groups, const SparseOperands& operands) {
  sparse_delta_input_gradient_for(vectors_for(dtype))(dtype, groups, operands);
}

void sparse_delta_value_gradient(DType dtype, std::span<const SparseValueGradient> groups, const void* x, int64_t x_stride, const void* dy,
                                 int64_t dy_stride) {
  sparse_delta_value_gradient_for(vectors_for(dtype))(dtype, groups, x, x_stride, dy, dy_stride);
}

}  // namespace cotune::kernels
