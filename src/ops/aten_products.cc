#include "ops/aten_products.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/isa.h"

namespace cotune {
namespace {

/// How many of `count` rows or columns of b, each of `length` elements, are widened at a time.
int64_t block_of(int64_t count, int64_t length) {
  const int64_t elements = widened_block_bytes / static_cast<int64_t>(sizeof(float));
  return std::clamp<int64_t>(elements / std::max<int64_t>(length, 1), 1, std::max<int64_t>(count, 1));
}

}  // namespace

bool multiplies_in_f32(at::ScalarType dtype, at::Device device) {
  return device.is_cpu() && dtype == at::kBFloat16 && !kernels::cpu_features().avx512_bf16;
}

at::Tensor multiply_in_f32(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  const int64_t depth = b.size(0), columns = b.size(1);
  const at::Tensor y = at::empty({a.size(0), columns}, a.options());
  if (columns >= depth) {
    const at::Tensor wide = a.to(at::kFloat);
    const int64_t block = block_of(columns, depth);
    for (int64_t begin = 0; begin < columns; begin += block) {
      const int64_t count = std::min(block, columns - begin);
      at::Tensor sums = at::mm(wide, b.narrow(1, begin, count).to(at::kFloat));
      if (bias.defined()) sums.add_(bias.narrow(0, begin, count));
      y.narrow(1, begin, count).copy_(sums);
    }
    return y;
  }
  const int64_t block = block_of(depth, columns);
  at::Tensor sums = at::zeros(y.sizes(), y.options().dtype(at::kFloat));
  for (int64_t begin = 0; begin < depth; begin += block) {
    const int64_t count = std::min(block, depth - begin);
    sums.addmm_(a.narrow(1, begin, count).to(at::kFloat), b.narrow(0, begin, count).to(at::kFloat));
  }
  if (bias.defined()) sums.add_(bias);
  return y.copy_(sums);
}

at::Tensor aten_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  if (multiplies_in_f32(a.scalar_type(), a.device())) return multiply_in_f32(a, b, bias);
  return bias.defined() ? at::addmm(bias, a, b) : at::mm(a, b);
}

at::Tensor aten_batched_product(const at::Tensor& a, const at::Tensor& b) {
  if (!multiplies_in_f32(a.scalar_type(), a.device())) return at::bmm(a, b);
  return at::bmm(a.to(at::kFloat), b.to(at::kFloat)).to(a.scalar_type());
}

}  // namespace cotune
