/// Sums and maxima over the threads of a block, in one fixed order: halves of a warp added to one another, then the warps'
/// results in the same way. Every thread gets the same bits. The block has whole warps, at most 32; every thread calls.
/// Each call needs shared memory of its own, [32].
#pragma once

#include "cuda/launch.cuh"

namespace cotune::cuda {

/// combine must be commutative to the bit.
template <typename T, typename Combine>
__device__ inline T block_combine(T value, T neutral, T* shared, Combine combine) {
#pragma unroll
  for (int distance = warp_size / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
  }
  const int lane = static_cast<int>(threadIdx.x) % warp_size, warp = static_cast<int>(threadIdx.x) / warp_size;
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  value = lane < static_cast<int>(blockDim.x) / warp_size ? shared[lane] : neutral;
#pragma unroll
  for (int distance = warp_size / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
  }
  return value;
}

__device__ inline float block_sum(float value, float* shared) {
  return block_combine(value, 0.0f, shared, [](float a, float b) { return __fadd_rn(a, b); });
}
/// NaNs are passed over; `lowest` where there is nothing else.
__device__ inline float block_maximum(float value, float lowest, float* shared) {
  return block_combine(value, lowest, shared, [](float a, float b) { return fmaxf(a, b); });
}
__device__ inline unsigned long long block_maximum(unsigned long long value, unsigned long long* shared) {
  return block_combine(value, 0ull, shared, [](unsigned long long a, unsigned long long b) { return a > b ? a : b; });
}

}  // namespace cotune::cuda
