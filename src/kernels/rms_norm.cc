#include "kernels/rms_norm.h"

#include <cmath>

#include "base/error.h"
#include "kernels/vectors_avx512.h"

namespace cotune::kernels {
namespace {

constexpr int64_t parallel_elements = 1 << 15;

COTUNE_AVX512_BEGIN

template <typename T>
float inverse_rms_of(const T* x, int64_t hidden, float eps) {
  __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
  for_lanes(hidden, [&](int64_t c, __mmask16 mask) {
    const __m512 v = load(x + c, mask);
    __m512& sum = (c & lane_count) ? odd : even;
    sum = _mm512_fmadd_ps(v, v, sum);
  });
  return 1.f / std::sqrt(lane_sum(_mm512_add_ps(even, odd)) / float(hidden) + eps);
}

template <typename X, typename T>
void scale_row(const X* x, int64_t hidden, const float* weight, float inverse_rms, T* y) {
  const __m512 r = _mm512_set1_ps(inverse_rms);
  for_lanes(hidden, [&](int64_t c, __mmask16 mask) {
    store(y + c, _mm512_mul_ps(_mm512_mul_ps(load(x + c, mask), r), load(weight + c, mask)), mask);
  });
}

template <typename X, typename T>
void round_row(const X* x, int64_t hidden, T* rounded) {
  for_lanes(hidden, [&](int64_t c, __mmask16 mask) { store(rounded + c, load(x + c, mask), mask); });
}

template <typename T>
void backward_row(const T* dy, const T* x, int64_t hidden, const float* weight, float inverse_rms, const T* residual,
                  T* dx) {
  __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
  for_lanes(hidden, [&](int64_t c, __mmask16 mask) {
    __m512& sum = (c & lane_count) ? odd : even;
    sum = _mm512_fmadd_ps(_mm512_mul_ps(load(dy + c, mask), load(weight + c, mask)), load(x + c, mask), sum);
  });
  const float dot = lane_sum(_mm512_add_ps(even, odd));
  const __m512 r = _mm512_set1_ps(inverse_rms);
  const __m512 along_x = _mm512_set1_ps(dot * inverse_rms * inverse_rms * inverse_rms / float(hidden));
  for_lanes(hidden, [&](int64_t c, __mmask16 mask) {
    const __m512 base = residual == nullptr ? _mm512_setzero_ps() : load(residual + c, mask);
    const __m512 scaled = _mm512_mul_ps(load(dy + c, mask), load(weight + c, mask));
    store(dx + c, _mm512_fmadd_ps(r, scaled, _mm512_fnmadd_ps(along_x, load(x + c, mask), base)), mask);
  });
}

COTUNE_AVX512_END

template <typename X, typename T>
void forward_rows(const X* x, int64_t tokens, int64_t hidden, const float* weight, float eps, T* y, float* inverse_rms, T* kept) {
#pragma omp parallel for schedule(static) if (tokens * hidden > parallel_elements)
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t row = t * hidden;
    inverse_rms[t] = inverse_rms_of(x + row, hidden, eps);
    scale_row(x + row, hidden, weight, inverse_rms[t], y + row);
    if (kept != nullptr) round_row(x + row, hidden, kept + row);
  }
}

}  // namespace

void rms_norm_forward(DType x_dtype, const void* x, int64_t tokens, int64_t hidden, const float* weight, float eps, DType dtype, void* y,
                      float* inverse_rms, void* kept) {
  COTUNE_CHECK(x_dtype == dtype || x_dtype == DType::f32, "rounded rows for a result in f32");
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
    const auto rows_of = [&](const auto* source) {
      forward_rows(source, tokens, hidden, weight, eps, static_cast<T*>(y), inverse_rms, static_cast<T*>(kept));
    };
    x_dtype == dtype ? rows_of(static_cast<const T*>(x)) : rows_of(static_cast<const float*>(x));
  });
}

void rms_norm_recompute(DType dtype, const void* x, int64_t tokens, int64_t hidden, const float* weight,
                        const float* inverse_rms, void* y) {
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
    const T* source = static_cast<const T*>(x);
    T* destination = static_cast<T*>(y);
#pragma omp parallel for schedule(static) if (tokens * hidden > parallel_elements)
    for (int64_t t = 0; t < tokens; ++t) {
      scale_row(source + t * hidden, hidden, weight, inverse_rms[t], destination + t * hidden);
    }
  });
}

void rms_norm_backward(DType dtype, const void* dy, const void* x, int64_t tokens, int64_t hidden, const float* weight,
                       const float* inverse_rms, const void* residual_gradient, void* dx) {
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
    const T* residual = static_cast<const T*>(residual_gradient);
#pragma omp parallel for schedule(static) if (tokens * hidden > parallel_elements)
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t row = t * hidden;
      backward_row(static_cast<const T*>(dy) + row, static_cast<const T*>(x) + row, hidden, weight, inverse_rms[t],
                   residual == nullptr ? nullptr : residual + row, static_cast<T*>(dx) + row);
    }
  });
}

}  // namespace cotune::kernels
