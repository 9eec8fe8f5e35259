#include "kernels/rms_norm.h"

#include <cmath>

#include "base/error.h"
#include "kernels/vectors.h"

namespace cotune::kernels::COTUNE_VECTORS {
namespace {

constexpr int64_t parallel_elements = 1 << 15;

COTUNE_VECTORS_BEGIN

template <typename T>
float inverse_rms_of(const T* x, int64_t hidden, float eps) {
  Vector even = no_values(), odd = no_values();
  for_lanes(hidden, [&](int64_t c, auto lanes) {
    const Vector v = load(x + c, lanes);
    Vector& sum = (c & lane_count) ? odd : even;
    sum = multiply_add(v, v, sum);
  });
  return 1.f / std::sqrt(lane_sum(even + odd) / float(hidden) + eps);
}

template <typename X, typename T>
void scale_row(const X* x, int64_t hidden, const float* weight, float inverse_rms, T* y) {
  const Vector r = splat(inverse_rms);
  for_lanes(hidden, [&](int64_t c, auto lanes) {
    store(y + c, load(x + c, lanes) * r * load(weight + c, lanes), lanes);
  });
}

template <typename X, typename T>
void round_row(const X* x, int64_t hidden, T* rounded) {
  for_lanes(hidden, [&](int64_t c, auto lanes) { store(rounded + c, load(x + c, lanes), lanes); });
}

template <typename T>
void backward_row(const T* dy, const T* x, int64_t hidden, const float* weight, float inverse_rms, const T* residual,
                  T* dx) {
  Vector even = no_values(), odd = no_values();
  for_lanes(hidden, [&](int64_t c, auto lanes) {
    Vector& sum = (c & lane_count) ? odd : even;
    sum = multiply_add(load(dy + c, lanes) * load(weight + c, lanes), load(x + c, lanes), sum);
  });
  const float dot = lane_sum(even + odd);
  const Vector r = splat(inverse_rms);
  const Vector along_x = splat(dot * inverse_rms * inverse_rms * inverse_rms / float(hidden));
  for_lanes(hidden, [&](int64_t c, auto lanes) {
    const Vector base = residual == nullptr ? no_values() : load(residual + c, lanes);
    const Vector scaled = load(dy + c, lanes) * load(weight + c, lanes);
    store(dx + c, multiply_add(r, scaled, subtract_product(base, along_x, load(x + c, lanes))), lanes);
  });
}

COTUNE_VECTORS_END

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

}  // namespace cotune::kernels::COTUNE_VECTORS
