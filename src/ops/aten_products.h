/// Matrix products by ATen in the compute dtype. Processors without AVX-512 have no bf16 products that oneDNN would take: there ATen
/// multiplies element by element, 8 to 60 times slower than in f32 (a core of an EPYC with AVX2 alone: 8 GFLOP/s against 60; of a Zen 3,
/// torch.mm of 512 × 576 by 576 × 1,536: 1.1 against 69). On AVX-512 without its BF16 instructions oneDNN takes them, but a row's bits
/// depend on how many rows there are. So on both bf16 is multiplied and added up in f32 and rounded once. Internal to ops/.
#pragma once

#include <ATen/core/Tensor.h>

namespace cotune {

/// Whether products of this dtype on this device are computed in f32.
bool multiplies_in_f32(at::ScalarType dtype, at::Device device);

/// Of b, what is widened at a time by multiply_in_f32.
inline constexpr int64_t widened_block_bytes = int64_t{4} << 20;

/// a·b (+ bias), a [m, k], b [k, n], bias [n] or undefined: contiguous, of a's dtype.
at::Tensor aten_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias = {});
/// a·b of every matrix, [count, m, k]·[count, k, n].
at::Tensor aten_batched_product(const at::Tensor& a, const at::Tensor& b);

/// aten_product where multiplies_in_f32: takes a whole and b in blocks, whose borders depend on b's shape alone: a row's sums do not
/// depend on the rows beside it.
at::Tensor multiply_in_f32(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias);

}  // namespace cotune
