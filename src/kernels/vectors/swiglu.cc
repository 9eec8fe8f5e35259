#include "kernels/swiglu.h"

#include "kernels/vectors.h"

namespace cotune::kernels::COTUNE_VECTORS {
namespace {

constexpr int64_t parallel_elements = 1 << 14;

COTUNE_VECTORS_BEGIN

/// To the accuracy of T.
template <typename T>
inline Vector sigmoid(Vector x) {
  x = larger(splat(-87.f), x);  // keeps the denominator finite; σ is below 1e-37 there
  const Vector one = splat(1.f);
  if constexpr (sizeof(T) == 2) {
    return rough_reciprocal(one + exp2<T>(x * splat(-log2_of_e)));
  } else {
    return reciprocal(one + exp(no_values() - x));
  }
}

template <typename T>
void forward_row(const T* gate, const T* up, int64_t width, T* y) {
  for_lanes(width, [&](int64_t c, auto lanes) {
    const Vector g = load(gate + c, lanes);
    store(y + c, g * sigmoid<T>(g) * load(up + c, lanes), lanes);
  });
}

template <bool with_y, typename T>
void backward_row(const T* dy, const T* gate, const T* up, int64_t width, T* dgate, T* dup, T* y) {
  const Vector one = splat(1.f);
  for_lanes(width, [&](int64_t c, auto lanes) {
    const Vector g = load(gate + c, lanes), u = load(up + c, lanes), d = load(dy + c, lanes);
    const Vector s = sigmoid<T>(g);
    const Vector silu = g * s;
    const Vector slope = s * multiply_add(g, one - s, one);
    store(dgate + c, d * u * slope, lanes);
    store(dup + c, d * silu, lanes);
    if constexpr (with_y) store(y + c, silu * u, lanes);
  });
}

COTUNE_VECTORS_END

}  // namespace

void swiglu_forward(DType dtype, const void* gate_up, int64_t gate_up_stride, int64_t tokens, int64_t width, void* y,
                    int64_t y_stride) {
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
#pragma omp parallel for schedule(static) if (tokens * width > parallel_elements)
    for (int64_t t = 0; t < tokens; ++t) {
      const T* gate = static_cast<const T*>(gate_up) + t * gate_up_stride;
      forward_row(gate, gate + width, width, static_cast<T*>(y) + t * y_stride);
    }
  });
}

void swiglu_backward(DType dtype, const void* dy, int64_t dy_stride, const void* gate_up, int64_t gate_up_stride,
                     int64_t tokens, int64_t width, void* dgate_up, int64_t dgate_up_stride, void* y,
                     int64_t y_stride) {
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
#pragma omp parallel for schedule(static) if (tokens * width > parallel_elements)
    for (int64_t t = 0; t < tokens; ++t) {
      const T* gate = static_cast<const T*>(gate_up) + t * gate_up_stride;
      const T* dy_row = static_cast<const T*>(dy) + t * dy_stride;
      T* dgate = static_cast<T*>(dgate_up) + t * dgate_up_stride;
      if (y == nullptr) {
        backward_row<false, T>(dy_row, gate, gate + width, width, dgate, dgate + width, nullptr);
      } else {
        backward_row<true, T>(dy_row, gate, gate + width, width, dgate, dgate + width,
                              static_cast<T*>(y) + t * y_stride);
      }
    }
  });
}

}  // namespace cotune::kernels::COTUNE_VECTORS
