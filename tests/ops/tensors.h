/// Random tensors on the device under test, and comparisons, for the operators' tests. References are computed on the CPU: in
/// f64 from exact(), or by ATen from on_host().
#pragma once

#include <functional>

#include "base/random.h"
#include "support/on_device.h"

namespace cotune::testing {

/// Standard normal values of the key, rounded once to dtype.
inline at::Tensor random_tensor(at::IntArrayRef shape, uint64_t key, at::ScalarType dtype, double scale = 1) {
  at::Tensor values = at::empty(shape, at::kDouble);
  double* value = values.mutable_data_ptr<double>();
  for (int64_t i = 0; i < values.numel(); ++i) value[i] = scale * normal(key, static_cast<uint64_t>(i));
  return on_device(values.to(dtype));
}

/// Entries of a weight that a density keeps.
inline int64_t kept_of(int64_t values, double density) {
  return std::max<int64_t>(1, static_cast<int64_t>(density * static_cast<double>(values)));
}

/// ‖a − b‖ / ‖b‖.
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = exact(a), y = exact(b);
  return (x - y).norm().item<double>() / std::max(1e-300, y.norm().item<double>());
}

/// What two correct implementations may differ by: results rounded to the dtype, f32 accumulation inside.
inline double tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 2e-6 : 6e-3;
}

/// Results of frozen products for the same rows among others: equal bits where those are promised.
inline bool same_products(const at::Tensor& a, const at::Tensor& b) {
  return frozen_products_keep_bits() ? same_bits(a, b) : relative_error(a, b) <= 2 * tolerance(a.scalar_type());
}

/// The gradient of f, a scalar function of x, by central differences of every element (f64).
inline at::Tensor numeric_gradient(const at::Tensor& x, const std::function<double()>& f) {
  constexpr double step = 1e-5;
  const at::Tensor start = on_host(x).clone(), elements = x.view({-1});
  at::Tensor gradient = at::empty(x.sizes(), at::kDouble);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double value = start.const_data_ptr<double>()[i];
    elements[i].fill_(value + step);
    const double above = f();
    elements[i].fill_(value - step);
    const double below = f();
    elements[i].fill_(value);
    gradient.mutable_data_ptr<double>()[i] = (above - below) / (2 * step);
  }
  return gradient;
}

/// Σ y ⊙ d: a scalar whose gradient with respect to y is d.
inline double weighted_sum(const at::Tensor& y, const at::Tensor& d) { return (y * d).sum().item<double>(); }

/// The dtypes for which this machine has kernels of ours; on a device, all that they may be of.
inline std::vector<at::ScalarType> kernel_dtypes() {
  std::vector<at::ScalarType> dtypes;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    if (!test_device().is_cpu() || kernel_isa(dtype, at::kCPU) != kernels::Isa::none) dtypes.push_back(dtype);
  }
  return dtypes;
}

}  // namespace cotune::testing
