/// The mask of kernels/dropout.h on the device, equal to the CPU's to the bit.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "base/random.h"
#include "device/gpu_kernels.h"

namespace cotune::cuda {

/// mix64 and mix_key of base/random.h, for device code.
__host__ __device__ constexpr uint64_t device_mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}
__host__ __device__ constexpr uint64_t device_mix_key(uint64_t key, uint64_t coordinate) {
  return device_mix64(key ^ device_mix64(coordinate));
}
static_assert(device_mix_key(0x0123456789ABCDEFULL, 42) == mix_key(0x0123456789ABCDEFULL, 42));

/// r of the formula: what all features of a row share.
__device__ inline uint64_t mask_row_key(uint64_t site_key, uint64_t example_key, int32_t position) {
  return device_mix_key(device_mix_key(site_key, example_key), static_cast<uint64_t>(static_cast<int64_t>(position)));
}

__device__ inline uint32_t mask_round(uint32_t x) {
  x ^= x >> 16;
  x *= 0x85EBCA6Bu;
  x ^= x >> 13;
  x *= 0xC2B2AE35u;
  return x ^ (x >> 16);
}

__device__ inline bool mask_keeps(uint64_t row_key, uint32_t threshold, uint32_t feature) {
  const uint32_t first = mask_round((feature * 0x9E3779B1u) ^ static_cast<uint32_t>(row_key));
  return mask_round(first ^ static_cast<uint32_t>(row_key >> 32)) >= threshold;
}

/// On the host: what kernels are given of a probability in [0, 1). Probability 0: everything is kept, times 1.
inline uint32_t mask_threshold(float probability) {
  return static_cast<uint32_t>(std::floor(static_cast<double>(probability) * 4294967296.0));
}
inline float mask_scale(float probability) {
  return static_cast<float>(1.0 / (1.0 - static_cast<double>(probability)));
}

}  // namespace cotune::cuda
