#include "cuda/row_kernels.h"
#include "cuda/row_parts.cuh"

namespace cotune::cuda {
namespace {

constexpr int most_threads = 256;

/// A thread takes a part of a head's first half and the part of the second half that turns with it.
template <typename T, bool whole>
__global__ void __launch_bounds__(most_threads)
    rotate_kernel(T* x, int64_t stride, int heads, int half, int parts_per_half, unsigned blocks_per_row,
                  const int32_t* positions, const float* cosine, const float* sine, int64_t table_rows, float sign) {
  const int64_t row = blockIdx.x / blocks_per_row;
  const int part = static_cast<int>(blockIdx.x % blocks_per_row * blockDim.x + threadIdx.x);
  if (part >= heads * parts_per_half) return;
  const int head = part / parts_per_half, column = part % parts_per_half * part_size<T>;
  T* first = x + row * stride + static_cast<int64_t>(head) * 2 * half;
  T* second = first + half;
  const int64_t position = positions[row];
  float a[part_size<T>], b[part_size<T>], cosines[part_size<T>], sines[part_size<T>];
  if (position < 0 || position >= table_rows) {
#pragma unroll
    for (int i = 0; i < part_size<T>; ++i) a[i] = b[i] = __uint_as_float(0x7FC00000u);  // NaN
  } else {
    load_part<whole>(first, column, half, a);
    load_part<whole>(second, column, half, b);
    load_floats<whole>(cosine + position * half, column, half, cosines);
    load_floats<whole>(sine + position * half, column, half, sines);
#pragma unroll
    for (int i = 0; i < part_size<T>; ++i) {
      const float s = __fmul_rn(sines[i], sign), from = a[i];
      a[i] = __fmaf_rn(-b[i], s, __fmul_rn(from, cosines[i]));
      b[i] = __fmaf_rn(from, s, __fmul_rn(b[i], cosines[i]));
    }
  }
  store_part<whole>(first, column, half, a);
  store_part<whole>(second, column, half, b);
}

}  // namespace

void launch_rotate(cudaStream_t stream, GpuType type, void* x, int64_t rows, int64_t stride, int64_t heads,
                   int64_t head_dim, const int32_t* positions, const float* cosine, const float* sine,
                   int64_t table_rows, int direction) {
  if (rows == 0 || heads == 0) return;
  if (head_dim % 2 != 0 || heads * head_dim > stride) {
    refuse("rotate", std::to_string(heads) + " heads of " + std::to_string(head_dim) + " in rows of " + std::to_string(stride));
  }
  column_count("rotate", heads * head_dim);
  with_type(type, [&](auto element) {
    using T = decltype(element);
    const int64_t half = head_dim / 2, parts_per_half = divide_up(half, part_size<T>);
    const PartGrid grid(heads * parts_per_half, most_threads);
    const bool all_aligned = aligned(x) && aligned(cosine) && aligned(sine);
    with_flag(whole_parts<T>(half) && whole_parts<T>(stride) && all_aligned, [&](auto whole) {
      launch("rotate", rotate_kernel<T, whole.value>, rows * grid.blocks_per_row, grid.threads, stream,
             static_cast<T*>(x), stride, static_cast<int>(heads), static_cast<int>(half),
             static_cast<int>(parts_per_half), grid.blocks_per_row, positions, cosine, sine, table_rows,
             direction < 0 ? -1.0f : 1.0f);
    });
  });
}

}  // namespace cotune::cuda
