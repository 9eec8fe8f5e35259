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
  const at::Tensor wide_z = z.to(wide).contiguous();
  const at::Tensor wide_d = d.defined() ? d.to(wide).contiguous() : wide_z;
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
  return result.to(z.scalar_type());
}

at::Tensor value_in_operations(Activation activation, const at::Tensor& z) {
  switch (activation) {
    case Activation::relu: return z.clamp_min(0);
    case Activation::gelu: return z * at::special_ndtr(z);
    case Activation::silu: return z * z.sigmoid();
    case Activation::tanh: return z.tanh();
  }
  return z;
}

at::Tensor slope_in_operations(Activation activation, const at::Tensor& z) {
  switch (activation) {
    case Activation::relu: return z.gt(0).to(z.scalar_type());
    case Activation::gelu:
      return at::special_ndtr(z) + z * (z.square() / -2).exp() * (std::numbers::inv_sqrtpi / std::numbers::sqrt2);
    case Activation::silu: {
      const at::Tensor sigmoid = z.sigmoid();
      return sigmoid * (1 + z * (1 - sigmoid));
    }
    case Activation::tanh: return 1 - z.tanh().square();
  }
  return at::ones_like(z);
}

}  // namespace

at::Tensor activate(Activation activation, const at::Tensor& z) {
  if (!z.is_cpu()) return activate_by_operations(activation, z);
  return elementwise({}, z, [activation](auto, auto v) { return value_of(activation, v); });
}

at::Tensor activate_backward(Activation activation, const at::Tensor& d, const at::Tensor& z) {
  if (!z.is_cpu()) return activate_backward_by_operations(activation, d, z);
  return elementwise(d, z, [activation](auto g, auto v) { return g * slope_of(activation, v); });
}

at::Tensor activate_by_operations(Activation activation, const at::Tensor& z) {
  return value_in_operations(activation, z.to(accumulation_dtype(z.scalar_type()))).to(z.scalar_type());
}

at::Tensor activate_backward_by_operations(Activation activation, const at::Tensor& d, const at::Tensor& z) {
  const at::ScalarType wide = accumulation_dtype(z.scalar_type());
  return (d.to(wide) * slope_in_operations(activation, z.to(wide))).to(z.scalar_type());
}

}  // namespace cotune
