/// A row in parts of 16 bytes, widened to f32. Thread t takes parts t, t + threads, …: which elements a thread takes, and in
/// which order, is the same whether a part is loaded at once or by elements.
#pragma once

#include <cstring>

#include "cuda/launch.cuh"

namespace cotune::cuda {

__device__ inline float widened(float value) { return value; }
__device__ inline float widened(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ inline T rounded(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    return __float2bfloat16_rn(value);
  }
}

/// The two bf16 of a word, low half first.
__device__ inline float low_half(uint32_t word) { return __uint_as_float(word << 16); }
__device__ inline float high_half(uint32_t word) { return __uint_as_float(word & 0xFFFF0000u); }
__device__ inline uint32_t rounded_pair(float low, float high) {
  return static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(low))) |
         static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(high))) << 16;
}

/// values = row[column …]; beyond `columns` zeros. `whole`: row + column is aligned to 16 bytes and the part ends within
/// the columns.
template <bool whole, typename T>
__device__ inline void load_part(const T* row, int column, int columns, float (&values)[part_size<T>]) {
  if constexpr (!whole) {
#pragma unroll
    for (int i = 0; i < part_size<T>; ++i) values[i] = column + i < columns ? widened(row[column + i]) : 0.0f;
  } else if constexpr (std::is_same_v<T, float>) {
    const float4 part = *reinterpret_cast<const float4*>(row + column);
    values[0] = part.x, values[1] = part.y, values[2] = part.z, values[3] = part.w;
  } else {
    const uint4 part = *reinterpret_cast<const uint4*>(row + column);
    const uint32_t words[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) values[2 * i] = low_half(words[i]), values[2 * i + 1] = high_half(words[i]);
  }
}

/// row[column …] = values, rounded once; nothing beyond `columns`.
template <bool whole, typename T>
__device__ inline void store_part(T* row, int column, int columns, const float (&values)[part_size<T>]) {
  if constexpr (!whole) {
#pragma unroll
    for (int i = 0; i < part_size<T>; ++i) {
      if (column + i < columns) row[column + i] = rounded<T>(values[i]);
    }
  } else if constexpr (std::is_same_v<T, float>) {
    *reinterpret_cast<float4*>(row + column) = make_float4(values[0], values[1], values[2], values[3]);
  } else {
    *reinterpret_cast<uint4*>(row + column) =
        make_uint4(rounded_pair(values[0], values[1]), rounded_pair(values[2], values[3]),
                   rounded_pair(values[4], values[5]), rounded_pair(values[6], values[7]));
  }
}

/// As load_part, of f32 values that go with a part of another type: `size` of them.
template <bool whole, int size>
__device__ inline void load_floats(const float* row, int column, int columns, float (&values)[size]) {
  static_assert(size % 4 == 0);
  if constexpr (!whole) {
#pragma unroll
    for (int i = 0; i < size; ++i) values[i] = column + i < columns ? row[column + i] : 0.0f;
  } else {
#pragma unroll
    for (int i = 0; i < size; i += 4) {
      const float4 part = *reinterpret_cast<const float4*>(row + column + i);
      values[i] = part.x, values[i + 1] = part.y, values[i + 2] = part.z, values[i + 3] = part.w;
    }
  }
}

/// Calls f(first column) for each part of the block's row that is this thread's.
template <typename T, typename F>
__device__ inline void for_parts(int columns, F f) {
  for (int column = static_cast<int>(threadIdx.x) * part_size<T>; column < columns;
       column += static_cast<int>(blockDim.x) * part_size<T>) {
    f(column);
  }
}

}  // namespace cotune::cuda
