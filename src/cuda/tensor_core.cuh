/// Fragments of the tensor cores' product of 16×16 by 16×8 in bf16 with f32 sums (PTX ISA, mma.m16n8k16), and the ways
/// in which our kernels fill them from memory without shared memory in between.
///
/// Lane = 4·g + t. The order of a product's inner index is free as long as both operands agree on it, and so is the
/// order of rows and columns as long as the result is read by it: each kernel chooses the one in which a lane's part of a
/// fragment lies in 16 bytes of memory.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace cotune::cuda {

struct Lane {
  int g, t;
};
__device__ inline Lane this_lane() {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return {lane / 4, lane % 4};
}

/// sums += a·b. a: {row g, row g+8} of inner pair 0, the same of inner pair 1; b: column g of pairs 0 and 1; sums: row g of
/// columns 2t, 2t+1, row g+8 of the same.
__device__ inline void multiply_add(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline uint4 load16(const __nv_bfloat16* from) { return *reinterpret_cast<const uint4*>(from); }
__device__ inline uint4 load16_or_zero(const __nv_bfloat16* from, bool there) {
  return there ? load16(from) : make_uint4(0, 0, 0, 0);
}
__device__ inline uint32_t load4_or_zero(const __nv_bfloat16* from, bool there) {
  return there ? *reinterpret_cast<const uint32_t*>(from) : 0u;
}

/// The lower (upper) halves of two words, `first` in the lower half of the result.
__device__ inline uint32_t lower_halves(uint32_t first, uint32_t second) { return __byte_perm(first, second, 0x5410); }
__device__ inline uint32_t upper_halves(uint32_t first, uint32_t second) { return __byte_perm(first, second, 0x7632); }

__device__ inline float2 to_floats(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
__device__ inline uint32_t to_pair(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

}  // namespace cotune::cuda
