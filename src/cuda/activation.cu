// Elementwise functions of all groups, a part of 16 bytes a thread. Every product and sum is rounded by itself, so that an
// element has the same bits whether it is read in a part or alone.

#include <algorithm>

#include "cuda/launch.cuh"
#include "cuda/method_kernels.h"
#include "cuda/row_parts.cuh"

namespace cotune::cuda {
namespace {

constexpr int threads = 256;
constexpr int most_groups = 256;  // of a launch, which takes them as parameters (at most 32 KiB)

struct Group {
  void* z;
  const void* gradient;
  const float* bias;
  void* y;
  int64_t count;
  int32_t columns, biased, first_block;
  GpuFunction function;
};
struct Call {
  int32_t count = 0;
  int64_t blocks = 0;
  Group groups[most_groups];
};
static_assert(sizeof(Call) < 24 * 1024);

__device__ inline float sigmoid(float z) { return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-z))); }
/// The share of the normal distribution below z.
__device__ inline float share_below(float z) { return __fmul_rn(0.5f, erfcf(__fmul_rn(-z, 0.70710678f))); }

__device__ inline float value_of(GpuFunction function, float z) {
  switch (function) {
    case GpuFunction::relu: return z > 0.0f ? z : 0.0f;
    case GpuFunction::gelu: return __fmul_rn(z, share_below(z));
    case GpuFunction::silu: return __fdiv_rn(z, __fadd_rn(1.0f, expf(-z)));
    case GpuFunction::tanh: return tanhf(z);
  }
  return z;
}

__device__ inline float slope_of(GpuFunction function, float z) {
  switch (function) {
    case GpuFunction::relu: return z > 0.0f ? 1.0f : 0.0f;
    case GpuFunction::gelu: {
      const float density = __fmul_rn(0.39894228f, expf(__fmul_rn(__fmul_rn(-0.5f, z), z)));
      return __fadd_rn(share_below(z), __fmul_rn(z, density));
    }
    case GpuFunction::silu: {
      const float share = sigmoid(z);
      return __fmul_rn(share, __fadd_rn(1.0f, __fmul_rn(z, __fsub_rn(1.0f, share))));
    }
    case GpuFunction::tanh: {
      const float value = tanhf(z);
      return __fsub_rn(1.0f, __fmul_rn(value, value));
    }
  }
  return 1.0f;
}

template <typename T, bool whole, bool backward>
__global__ void __launch_bounds__(threads) activate_kernel(const __grid_constant__ Call call) {
  const int block = static_cast<int>(blockIdx.x);
  const Group& group = call.groups[entry_of_block(call.groups, call.count)];
  const int64_t first = (static_cast<int64_t>(block - group.first_block) * threads + threadIdx.x) * part_size<T>;
  if (first >= group.count) return;
  const int64_t rest = group.count - first;
  const int left = rest < part_size<T> ? static_cast<int>(rest) : part_size<T>;
  T* z = static_cast<T*>(group.z) + first;
  float values[part_size<T>], results[part_size<T>];
  load_part<whole>(z, 0, left, values);
  if constexpr (backward) {
    load_part<whole>(static_cast<const T*>(group.gradient) + first, 0, left, results);
#pragma unroll
    for (int i = 0; i < part_size<T>; ++i) results[i] = __fmul_rn(results[i], slope_of(group.function, values[i]));
  } else {
    if (group.bias != nullptr) {
      auto column = static_cast<int>(first % group.columns);
#pragma unroll
      for (int i = 0; i < part_size<T>; ++i) {
        if (column < group.biased) values[i] = widened(rounded<T>(__fadd_rn(values[i], group.bias[column])));
        column = column + 1 == group.columns ? 0 : column + 1;
      }
      store_part<whole>(z, 0, left, values);
    }
#pragma unroll
    for (int i = 0; i < part_size<T>; ++i) results[i] = value_of(group.function, values[i]);
  }
  store_part<whole>(static_cast<T*>(group.y) + first, 0, left, results);
}

template <bool backward>
void launch_all(cudaStream_t stream, const char* name, GpuType type, std::span<const GpuActivation> groups) {
  with_type(type, [&](auto element) {
    using T = decltype(element);
    Call call;
    const auto flush = [&] {
      if (call.blocks == 0) return;
      const bool parts = std::all_of(call.groups, call.groups + call.count, [](const Group& group) {
        return whole_parts<T>(group.count) && aligned(group.z) && aligned(group.y) && aligned(group.gradient);
      });
      with_flag(parts, [&](auto whole) {
        launch(name, activate_kernel<T, whole.value, backward>, call.blocks, threads, stream, call);
      });
      call.count = 0;
      call.blocks = 0;
    };
    for (const GpuActivation& group : groups) {
      const int64_t count = group.rows * group.columns;
      if (count == 0) continue;
      const int64_t blocks = divide_up(divide_up(count, part_size<T>), threads);
      if (call.count == most_groups || call.blocks + blocks > INT32_MAX) flush();
      call.groups[call.count++] = {group.z,
                                   group.gradient,
                                   group.bias,
                                   group.y,
                                   count,
                                   column_count(name, group.columns),
                                   column_count(name, group.biased),
                                   static_cast<int32_t>(call.blocks),
                                   group.function};
      call.blocks += blocks;
    }
    flush();
  });
}

}  // namespace

void launch_activate(cudaStream_t stream, GpuType type, std::span<const GpuActivation> groups) {
  launch_all<false>(stream, "activate", type, groups);
}

void launch_activate_backward(cudaStream_t stream, GpuType type, std::span<const GpuActivation> groups) {
  launch_all<true>(stream, "activate_backward", type, groups);
}

}  // namespace cotune::cuda
