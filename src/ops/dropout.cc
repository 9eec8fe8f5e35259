#include "ops/dropout.h"

#include <ATen/ATen.h>

#include <cmath>

#include "kernels/dropout.h"
#include "ops/backend.h"
#include "ops/low_rank_forms.h"

namespace cotune {
namespace {

kernels::DropoutSite site_of(const DropoutMask& mask) { return {mask.key, static_cast<float>(mask.probability)}; }

kernels::DropoutRows rows_of(const DropoutMask& mask, int64_t features) {
  return {mask.positions.size(0), features, reinterpret_cast<const uint64_t*>(mask.example_keys.const_data_ptr<int64_t>()),
          mask.positions.const_data_ptr<int32_t>()};
}

// The formula of kernels/dropout.h in tensor operations. Tensors have no unsigned 64-bit arithmetic: int64 sums and
// products keep the same bits, and what a shift of a negative number brings in from the left is cut off.

constexpr int64_t low_half = 0xFFFFFFFF;

int64_t signed_bits(uint64_t value) { return static_cast<int64_t>(value); }

at::Tensor shifted_right(const at::Tensor& x, int64_t bits) {
  return at::bitwise_right_shift(x, bits).bitwise_and_(signed_bits(~uint64_t{0} >> bits));
}

/// mix64 (base/random.h) of every element.
at::Tensor mixed(const at::Tensor& values) {
  at::Tensor x = values + signed_bits(0x9e3779b97f4a7c15ULL);
  x = x.bitwise_xor_(shifted_right(x, 30)).mul_(signed_bits(0xbf58476d1ce4e5b9ULL));
  x = x.bitwise_xor_(shifted_right(x, 27)).mul_(signed_bits(0x94d049bb133111ebULL));
  return x.bitwise_xor_(shifted_right(x, 31));
}

/// `round` of the formula, in place, of elements in [0, 2^32).
void mix_round(at::Tensor& x) {
  for (const int64_t factor : {0x85EBCA6BL, 0xC2B2AE35L}) {
    x.bitwise_xor_(at::bitwise_right_shift(x, factor == 0x85EBCA6BL ? 16 : 13)).mul_(factor).bitwise_and_(low_half);
  }
  x.bitwise_xor_(at::bitwise_right_shift(x, 16));
}

/// The mask as a tensor, for the ATen path: [rows, features], 0 or 1/(1 − p).
at::Tensor dense_mask(const DropoutMask& mask, const at::Tensor& like) {
  const kernels::DropoutSite site = site_of(mask);
  const at::Tensor site_and_example = mixed(mixed(mask.example_keys).bitwise_xor_(signed_bits(site.key)));
  const at::Tensor row_keys =
      mixed(mixed(mask.positions.to(at::kLong)).bitwise_xor_(site_and_example)).unsqueeze(1);
  const at::Tensor features = at::arange(like.size(1), row_keys.options());
  at::Tensor hash = (features * int64_t{0x9E3779B1}).bitwise_and_(low_half).bitwise_xor(row_keys.bitwise_and(low_half));
  mix_round(hash);
  hash.bitwise_xor_(shifted_right(row_keys, 32));
  mix_round(hash);
  const auto threshold = static_cast<int64_t>(std::floor(static_cast<double>(site.probability) * 4294967296.0));
  return hash.ge(threshold).to(accumulation_dtype(like.scalar_type())).mul_(1.0 / (1.0 - mask.probability));
}

}  // namespace

void apply_dropout(const DropoutMask& mask, const at::Tensor& x, at::Tensor& y) {
  if (use_kernels(x)) {
    kernels::dropout_forward(kernel_dtype(x.scalar_type()), site_of(mask), rows_of(mask, x.size(1)),
                             x.const_data_ptr(), x.stride(0), y.mutable_data_ptr(), y.stride(0));
    return;
  }
  const at::Tensor dense = dense_mask(mask, x);
  y.copy_(x.to(dense.scalar_type()) * dense);
}

void add_dropout_gradient(const DropoutMask& mask, const at::Tensor& dy, at::Tensor& dx) {
  if (use_kernels(dx)) {
    kernels::dropout_backward_add(kernel_dtype(dx.scalar_type()), site_of(mask), rows_of(mask, dx.size(1)),
                                  dy.const_data_ptr(), dy.stride(0), dx.mutable_data_ptr(), dx.stride(0));
    return;
  }
  const at::Tensor dense = dense_mask(mask, dx);
  dx.copy_(dx.to(dense.scalar_type()) + dy.to(dense.scalar_type()) * dense);
}

}  // namespace cotune
