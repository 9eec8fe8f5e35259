#include "cuda/row_kernels.h"
#include "cuda/row_parts.cuh"

namespace cotune::cuda {
namespace {

constexpr int most_threads = 256;

__device__ inline float sigmoid(float x) { return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-x))); }
/// silu(gate)·up, given silu: the same forward and backward.
__device__ inline float gated(float silu, float up) { return __fmul_rn(silu, up); }

/// This thread's row and first column; a column beyond the width where it has nothing to do.
template <typename T>
struct Place {
  int64_t row;
  int64_t column;
  __device__ explicit Place(unsigned blocks_per_row)
      : row(blockIdx.x / blocks_per_row),
        column((static_cast<int64_t>(blockIdx.x % blocks_per_row) * blockDim.x + threadIdx.x) * part_size<T>) {}
};

template <typename T, bool whole>
__global__ void __launch_bounds__(most_threads)
    swiglu_kernel(const T* gate_up, int width, unsigned blocks_per_row, T* y) {
  const Place<T> place(blocks_per_row);
  if (place.column >= width) return;
  const int column = static_cast<int>(place.column);
  const T* gate = gate_up + place.row * 2 * width;
  float gates[part_size<T>], ups[part_size<T>];
  load_part<whole>(gate, column, width, gates);
  load_part<whole>(gate + width, column, width, ups);
#pragma unroll
  for (int i = 0; i < part_size<T>; ++i) ups[i] = gated(__fmul_rn(gates[i], sigmoid(gates[i])), ups[i]);
  store_part<whole>(y + place.row * width, column, width, ups);
}

template <typename T, bool whole>
__global__ void __launch_bounds__(most_threads)
    swiglu_backward_kernel(const T* dy, const T* gate_up, int width, unsigned blocks_per_row, T* d_gate_up, T* y) {
  const Place<T> place(blocks_per_row);
  if (place.column >= width) return;
  const int column = static_cast<int>(place.column);
  const int64_t start = place.row * 2 * width;
  float gates[part_size<T>], ups[part_size<T>], gradients[part_size<T>];
  load_part<whole>(gate_up + start, column, width, gates);
  load_part<whole>(gate_up + start + width, column, width, ups);
  load_part<whole>(dy + place.row * width, column, width, gradients);
  float results[part_size<T>];
#pragma unroll
  for (int i = 0; i < part_size<T>; ++i) {
    const float gate = gates[i], up = ups[i], d = gradients[i], share = sigmoid(gate);
    const float silu = __fmul_rn(gate, share);
    const float slope = __fmul_rn(share, __fmaf_rn(gate, __fsub_rn(1.0f, share), 1.0f));
    results[i] = gated(silu, up);
    gates[i] = __fmul_rn(__fmul_rn(d, up), slope);
    ups[i] = __fmul_rn(d, silu);
  }
  store_part<whole>(d_gate_up + start, column, width, gates);
  store_part<whole>(d_gate_up + start + width, column, width, ups);
  store_part<whole>(y + place.row * width, column, width, results);
}

}  // namespace

void launch_swiglu(cudaStream_t stream, GpuType type, const void* gate_up, int64_t rows, int64_t width, void* y) {
  if (rows == 0 || width == 0) return;
  const int count = column_count("swiglu", width);
  with_type(type, [&](auto element) {
    using T = decltype(element);
    const PartGrid grid(divide_up(width, part_size<T>), most_threads);
    with_flag(whole_parts<T>(width) && aligned(gate_up) && aligned(y), [&](auto whole) {
      launch("swiglu", swiglu_kernel<T, whole.value>, rows * grid.blocks_per_row, grid.threads, stream,
             static_cast<const T*>(gate_up), count, grid.blocks_per_row, static_cast<T*>(y));
    });
  });
}

void launch_swiglu_backward(cudaStream_t stream, GpuType type, const void* dy, const void* gate_up, int64_t rows,
                            int64_t width, void* d_gate_up, void* y) {
  if (rows == 0 || width == 0) return;
  const int count = column_count("swiglu_backward", width);
  with_type(type, [&](auto element) {
    using T = decltype(element);
    const PartGrid grid(divide_up(width, part_size<T>), most_threads);
    const bool all_aligned = aligned(dy) && aligned(gate_up) && aligned(d_gate_up) && aligned(y);
    with_flag(whole_parts<T>(width) && all_aligned, [&](auto whole) {
      launch("swiglu_backward", swiglu_backward_kernel<T, whole.value>, rows * grid.blocks_per_row, grid.threads,
             stream, static_cast<const T*>(dy), static_cast<const T*>(gate_up), count, grid.blocks_per_row,
             static_cast<T*>(d_gate_up), static_cast<T*>(y));
    });
  });
}

}  // namespace cotune::cuda
