#include "kernels/swiglu.h"

#include "kernels/vectors_avx512.h"

namespace cotune::kernels {
namespace {

constexpr int64_t parallel_elements = 1 << 14;

COTUNE_AVX512_BEGIN

/// To the accuracy of T.
template <typename T>
inline __m512 sigmoid(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-87.f), x);  // keeps the denominator finite; σ is below 1e-37 there
  const __m512 one = _mm512_set1_ps(1.f);
  if constexpr (sizeof(T) == 2) {
    return _mm512_rcp14_ps(_mm512_add_ps(one, exp2<T>(_mm512_mul_ps(x, _mm512_set1_ps(-log2_of_e)))));
  } else {
    return reciprocal(_mm512_add_ps(one, exp(_mm512_sub_ps(_mm512_setzero_ps(), x))));
  }
}

template <typename T>
void forward_row(const T* gate, const T* up, int64_t width, T* y) {
  for_lanes(width, [&](int64_t c, __mmask16 mask) {
    const __m512 g = load(gate + c, mask);
    store(y + c, _mm512_mul_ps(_mm512_mul_ps(g, sigmoid<T>(g)), load(up + c, mask)), mask);
  });
}

template <bool with_y, typename T>
void backward_row(const T* dy, const T* gate, const T* up, int64_t width, T* dgate, T* dup, T* y) {
  const __m512 one = _mm512_set1_ps(1.f);
  for_lanes(width, [&](int64_t c, __mmask16 mask) {
    const __m512 g = load(gate + c, mask), u = load(up + c, mask), d = load(dy + c, mask);
    const __m512 s = sigmoid<T>(g);
    const __m512 silu = _mm512_mul_ps(g, s);
    const __m512 slope = _mm512_mul_ps(s, _mm512_fmadd_ps(g, _mm512_sub_ps(one, s), one));
    store(dgate + c, _mm512_mul_ps(_mm512_mul_ps(d, u), slope), mask);
    store(dup + c, _mm512_mul_ps(d, silu), mask);
    if constexpr (with_y) store(y + c, _mm512_mul_ps(silu, u), mask);
  });
}

COTUNE_AVX512_END

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

}  // namespace cotune::kernels
