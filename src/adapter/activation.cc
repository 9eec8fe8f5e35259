#include "adapter/activation.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numbers>

#include "base/error.h"
#include "ops/backend.h"

namespace cotune {
namespace {

template <typename T>
T value_of(Activation activation, T z) {
  switch (activation) {
    case Activation::relu: return z > 0 ? z : T(0);
    case Activation::gelu: return z * T(0.5) * std::erfc(-z * T(std::numbers::sqrt2 / 2));
    case Activation::silu: return z / (1 + std::exp(-z));
    case Activation::tanh: return std::tanh(z);
  }
  return z;
}

template <typename T>
T slope_of(Activation activation, T z) {
  switch (activation) {
    case Activation::relu: return z > 0 ? T(1) : T(0);
    case Activation::gelu:
      return T(0.5) * std::erfc(-z * T(std::numbers::sqrt2 / 2)) +
             z * std::exp(-z * z / 2) * T(std::numbers::inv_sqrtpi / std::numbers::sqrt2);
    case Activation::silu: {
      const T sigmoid = 1 / (1 + std::exp(-z));
      return sigmoid * (1 + z * (1 - sigmoid));
    }
    case Activation::tanh: {
      const T t = std::tanh(z);
      return 1 - t * t;
    }
  }
  return T(1);
}

/// Applies f(d, z) elementwise on the CPU in the accumulation dtype.
template <typename Function>
at::Tensor elementwise(const at::Tensor& d, const at::Tensor& z, Function function) {
  const at::ScalarType wide = accumulation_dtype(z.scalar_type());
  const at::Tensor wide_z = z.to(at::kCPU, wide).contiguous();
  const at::Tensor wide_d = d.defined() ? d.to(at::kCPU, wide).contiguous() : wide_z;
  at::Tensor result = at::empty_like(wide_z);
  const auto run = [&]<typename T>(T) {
    const T* zs = wide_z.const_data_ptr<T>();
    const T* ds = wide_d.const_data_ptr<T>();
    T* out = result.mutable_data_ptr<T>();
    for (int64_t i = 0; i < wide_z.numel(); ++i) out[i] = function(ds[i], zs[i]);
  };
  if (wide == at::kDouble) {
    run(double{});
  } else {
    run(float{});
  }
  return result.to(z.device(), z.scalar_type());
}

}  // namespace

at::Tensor activate(Activation activation, const at::Tensor& z) {
  return elementwise({}, z, [activation](auto, auto v) { return value_of(activation, v); });
}

at::Tensor activate_backward(Activation activation, const at::Tensor& d, const at::Tensor& z) {
  return elementwise(d, z, [activation](auto g, auto v) { return g * slope_of(activation, v); });
}

}  // namespace cotune
