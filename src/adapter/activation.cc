#include "adapter/activation.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "kernels/parallel_blocks.h"
#include "ops/backend.h"
#include "ops/call_counts.h"

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

constexpr int64_t block_values = 4096;

/// The rows of all groups below one another.
struct FlatRows {
  explicit FlatRows(const std::vector<ActivationGroup>& groups) {
    for (const ActivationGroup& group : groups) {
      begins.push_back(begins.back() + group.z.size(0));
      columns = std::max(columns, group.z.size(1));
    }
  }
  std::vector<int64_t> begins{0};
  int64_t columns = 1;
};

/// Calls body(group, first row, last row), T being the groups' element, on all threads.
template <typename Body>
void for_each_rows(const std::vector<ActivationGroup>& groups, Body body) {
  const FlatRows flat(groups);
  kernels::parallel_blocks(flat.begins.back(), std::max<int64_t>(1, block_values / flat.columns), [&](int64_t begin, int64_t end) {
    for (size_t g = 0; g < groups.size(); ++g) {
      const int64_t first = std::max(begin, flat.begins[g]), last = std::min(end, flat.begins[g + 1]);
      if (first < last) body(g, first - flat.begins[g], last - flat.begins[g]);
    }
  });
}

template <typename T>
void activate_rows(const ActivationGroup& group, at::Tensor& out, int64_t begin, int64_t end) {
  using Wide = at::opmath_type<T>;
  const int64_t columns = group.z.size(1), biased = group.bias.defined() ? group.bias.size(0) : 0;
  const Wide* bias = biased > 0 ? group.bias.const_data_ptr<Wide>() : nullptr;
  T* z = static_cast<T*>(group.z.data_ptr());
  T* y = out.mutable_data_ptr<T>();
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t i = row * columns + c;
      if (c < biased) z[i] = static_cast<T>(static_cast<Wide>(z[i]) + bias[c]);
      y[i] = static_cast<T>(value_of(group.activation, static_cast<Wide>(z[i])));
    }
  }
}

template <typename T>
void slope_rows(const ActivationGroup& group, at::Tensor& out, int64_t begin, int64_t end) {
  using Wide = at::opmath_type<T>;
  const int64_t columns = group.z.size(1);
  const T* z = group.z.const_data_ptr<T>();
  const T* gradient = group.gradient.const_data_ptr<T>();
  T* y = out.mutable_data_ptr<T>();
  for (int64_t i = begin * columns; i < end * columns; ++i) {
    y[i] = static_cast<T>(static_cast<Wide>(gradient[i]) * slope_of(group.activation, static_cast<Wide>(z[i])));
  }
}

/// Calls body with an element of the groups' dtype.
template <typename Body>
void with_element(const std::vector<ActivationGroup>& groups, Body body) {
  switch (groups.front().z.scalar_type()) {
    case at::kBFloat16: body(at::BFloat16{}); break;
    case at::kFloat: body(float{}); break;
    default:
      COTUNE_CHECK(groups.front().z.scalar_type() == at::kDouble);
      body(double{});
  }
}

std::vector<at::Tensor> tensors_like_z(const std::vector<ActivationGroup>& groups) {
  std::vector<at::Tensor> tensors;
  for (const ActivationGroup& group : groups) {
    COTUNE_CHECK(group.z.is_contiguous() && (!group.gradient.defined() || group.gradient.is_contiguous()));
    tensors.push_back(at::empty_like(group.z));
  }
  return tensors;
}

GpuFunction gpu_function(Activation activation) {
  switch (activation) {
    case Activation::relu: return GpuFunction::relu;
    case Activation::gelu: return GpuFunction::gelu;
    case Activation::silu: return GpuFunction::silu;
    case Activation::tanh: return GpuFunction::tanh;
  }
  return GpuFunction::relu;
}

/// Calls run(kernels, type, groups) with what a GPU's kernels take; results like z. Empty where there are none for these.
template <typename Run>
std::vector<at::Tensor> by_gpu_kernels(const std::vector<ActivationGroup>& groups, Run run) {
  const at::Tensor& first = groups.front().z;
  GpuKernels* kernels = gpu_kernels_for(first);
  if (kernels == nullptr) return {};
  count_adapter_call();
  std::vector<at::Tensor> results = tensors_like_z(groups);
  std::vector<GpuActivation> calls;
  for (size_t g = 0; g < groups.size(); ++g) {
    const ActivationGroup& group = groups[g];
    const bool biased = group.bias.defined(), backward = group.gradient.defined();
    calls.push_back({.function = gpu_function(group.activation),
                     .rows = group.z.size(0),
                     .columns = group.z.size(1),
                     .z = group.z.data_ptr(),
                     .bias = biased ? group.bias.const_data_ptr<float>() : nullptr,
                     .biased = biased ? group.bias.size(0) : 0,
                     .gradient = backward ? group.gradient.const_data_ptr() : nullptr,
                     .y = results[g].mutable_data_ptr()});
  }
  run(*kernels, gpu_type(first.scalar_type()), calls);
  return results;
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

/// function(activation, gradient, z) of all groups that name an activation at once, as flat tensors of the accumulation dtype.
template <typename Function>
std::vector<at::Tensor> by_operations(const std::vector<ActivationGroup>& groups, Function function) {
  std::vector<at::Tensor> results = tensors_like_z(groups), targets, sources;
  for (const Activation activation : {Activation::relu, Activation::gelu, Activation::silu, Activation::tanh}) {
    std::vector<at::Tensor> z, gradients;
    std::vector<size_t> members;
    for (size_t g = 0; g < groups.size(); ++g) {
      if (groups[g].activation != activation) continue;
      members.push_back(g);
      z.push_back(groups[g].z.reshape({-1}));
      if (groups[g].gradient.defined()) gradients.push_back(groups[g].gradient.reshape({-1}));
    }
    if (members.empty()) continue;
    count_adapter_call();
    const at::ScalarType wide = accumulation_dtype(z.front().scalar_type());
    const at::Tensor all = function(activation, gradients.empty() ? at::Tensor() : at::cat(gradients).to(wide), at::cat(z).to(wide));
    int64_t begin = 0;
    for (const size_t g : members) {
      targets.push_back(results[g]);
      sources.push_back(all.narrow(0, begin, results[g].numel()).view(results[g].sizes()));
      begin += results[g].numel();
    }
  }
  at::_foreach_copy_(targets, sources);
  return results;
}

}  // namespace

std::vector<at::Tensor> activate(const std::vector<ActivationGroup>& groups) {
  if (!groups.front().z.is_cpu()) {
    const std::vector<at::Tensor> results =
        by_gpu_kernels(groups, [](GpuKernels& kernels, GpuType type, const auto& calls) { kernels.activate(type, calls); });
    return results.empty() ? activate_by_operations(groups) : results;
  }
  count_adapter_call();
  std::vector<at::Tensor> results = tensors_like_z(groups);
  with_element(groups, [&](auto element) {
    for_each_rows(groups, [&](size_t g, int64_t begin, int64_t end) {
      activate_rows<decltype(element)>(groups[g], results[g], begin, end);
    });
  });
  return results;
}

std::vector<at::Tensor> activate_backward(const std::vector<ActivationGroup>& groups) {
  if (!groups.front().z.is_cpu()) {
    const std::vector<at::Tensor> results = by_gpu_kernels(
        groups, [](GpuKernels& kernels, GpuType type, const auto& calls) { kernels.activate_backward(type, calls); });
    return results.empty() ? activate_backward_by_operations(groups) : results;
  }
  count_adapter_call();
  std::vector<at::Tensor> results = tensors_like_z(groups);
  with_element(groups, [&](auto element) {
    for_each_rows(groups, [&](size_t g, int64_t begin, int64_t end) {
      slope_rows<decltype(element)>(groups[g], results[g], begin, end);
    });
  });
  return results;
}

std::vector<at::Tensor> activate_by_operations(const std::vector<ActivationGroup>& groups) {
  std::vector<at::Tensor> targets, biases;
  for (const ActivationGroup& group : groups) {
    if (!group.bias.defined()) continue;
    targets.push_back(group.z.narrow(1, 0, group.bias.size(0)));
    biases.push_back(group.bias);
  }
  if (!targets.empty()) at::_foreach_add_(targets, biases);
  return by_operations(groups, [](Activation activation, const at::Tensor&, const at::Tensor& z) {
    return value_in_operations(activation, z);
  });
}

std::vector<at::Tensor> activate_backward_by_operations(const std::vector<ActivationGroup>& groups) {
  return by_operations(groups, [](Activation activation, const at::Tensor& gradient, const at::Tensor& z) {
    return gradient * slope_in_operations(activation, z);
  });
}

}  // namespace cotune
