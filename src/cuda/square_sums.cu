// Sums of squares in f64, a block for each array.

#include "cuda/launch.cuh"
#include "cuda/optimizer.h"

namespace cotune::cuda {
namespace {

constexpr int threads = 512;
constexpr int most_arrays = 512;  // of a launch, which takes them as parameters (at most 32 KiB)

struct Call {
  int32_t count = 0;
  GpuArray arrays[most_arrays];
};

__global__ void __launch_bounds__(threads) square_sums_kernel(const __grid_constant__ Call call, double* sums) {
  const GpuArray& array = call.arrays[blockIdx.x];
  double sum = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < array.count; i += threads) {
    const auto value = static_cast<double>(array.values[i]);
    sum += value * value;
  }
  __shared__ double partial[threads];
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int distance = threads / 2; distance > 0; distance /= 2) {
    if (static_cast<int>(threadIdx.x) < distance) partial[threadIdx.x] += partial[threadIdx.x + distance];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
}

}  // namespace

void launch_square_sums(cudaStream_t stream, std::span<const GpuArray> arrays, double* sums) {
  Call call;
  const auto flush = [&] {
    if (call.count == 0) return;
    square_sums_kernel<<<static_cast<unsigned>(call.count), threads, 0, stream>>>(call, sums);
    check_launch("square_sums");
    sums += call.count;
    call.count = 0;
  };
  for (const GpuArray& array : arrays) {
    if (call.count == most_arrays) flush();
    call.arrays[call.count++] = array;
  }
  flush();
}

}  // namespace cotune::cuda
