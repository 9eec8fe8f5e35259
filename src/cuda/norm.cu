#include "cuda/block_sums.cuh"
#include "cuda/row_kernels.h"
#include "cuda/row_parts.cuh"

namespace cotune::cuda {
namespace {

// A block per row. The row is read twice: the second time it comes from the cache.
constexpr int most_threads = 512;

__device__ inline float comparable_text(float x, float inverse_rms, float weight) {
  return __fmul_rn(__fmul_rn(x, inverse_rms), weight);
}

/// A part of T's size of a row in T or f32.
template <bool whole, typename T, typename X>
__device__ inline void load_row_part(const X* row, int column, int columns, float (&values)[part_size<T>]) {
  if constexpr (std::is_same_v<X, T>) {
    load_part<whole>(row, column, columns, values);
  } else {
    load_floats<whole>(row, column, columns, values);
  }
}

/// y = x · inverse_rms · weight of the block's row: the same for rms_norm and rms_norm_again. kept: x, rounded; or nullptr.
template <bool whole, typename X, typename T>
__device__ inline void write_normalised(const X* x, int columns, const float* weight, float inverse_rms, T* y, T* kept) {
  for_parts<T>(columns, [&](int column) {
    float values[part_size<T>], weights[part_size<T>];
    load_row_part<whole, T>(x, column, columns, values);
    if (kept != nullptr) store_part<whole>(kept, column, columns, values);
    load_floats<whole>(weight, column, columns, weights);
#pragma unroll
    for (int i = 0; i < part_size<T>; ++i) values[i] = comparable_text(values[i], inverse_rms, weights[i]);
    store_part<whole>(y, column, columns, values);
  });
}

template <typename X, typename T, bool whole>
__global__ void __launch_bounds__(most_threads)
    rms_norm_kernel(const X* x, int columns, const float* weight, float eps, T* y, float* inverse_rms, T* kept) {
  __shared__ float shared[warp_size];
  const int64_t row = blockIdx.x;
  x += row * columns;
  float squares = 0;
  for_parts<T>(columns, [&](int column) {
    float values[part_size<T>];
    load_row_part<whole, T>(x, column, columns, values);
#pragma unroll
    for (int i = 0; i < part_size<T>; ++i) squares = __fmaf_rn(values[i], values[i], squares);
  });
  const float mean = __fdiv_rn(block_sum(squares, shared), static_cast<float>(columns));
  const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
  if (threadIdx.x == 0) inverse_rms[row] = inverse;
  write_normalised<whole>(x, columns, weight, inverse, y + row * columns, kept == nullptr ? nullptr : kept + row * columns);
}

template <typename T, bool whole>
__global__ void __launch_bounds__(most_threads)
    rms_norm_again_kernel(const T* x, int columns, const float* weight, const float* inverse_rms, T* y) {
  const int64_t row = blockIdx.x;
  write_normalised<whole>(x + row * columns, columns, weight, inverse_rms[row], y + row * columns, static_cast<T*>(nullptr));
}

template <typename T, bool whole>
__global__ void __launch_bounds__(most_threads)
    rms_norm_backward_kernel(const T* dy, const T* x, int columns, const float* weight, const float* inverse_rms,
                             const T* residual, T* dx) {
  __shared__ float shared[warp_size];
  const int64_t row = blockIdx.x, start = row * columns;
  dy += start;
  x += start;
  float products = 0;  // Σ dy·weight·x
  for_parts<T>(columns, [&](int column) {
    float gradients[part_size<T>], values[part_size<T>], weights[part_size<T>];
    load_part<whole>(dy, column, columns, gradients);
    load_part<whole>(x, column, columns, values);
    load_floats<whole>(weight, column, columns, weights);
#pragma unroll
    for (int i = 0; i < part_size<T>; ++i) {
      products = __fmaf_rn(__fmul_rn(gradients[i], weights[i]), values[i], products);
    }
  });
  const float inverse = inverse_rms[row];
  const float mean = __fdiv_rn(block_sum(products, shared), static_cast<float>(columns));
  const float along_x = __fmul_rn(__fmul_rn(__fmul_rn(mean, inverse), inverse), inverse);
  for_parts<T>(columns, [&](int column) {
    float gradients[part_size<T>], values[part_size<T>], weights[part_size<T>], base[part_size<T>] = {};
    load_part<whole>(dy, column, columns, gradients);
    load_part<whole>(x, column, columns, values);
    load_floats<whole>(weight, column, columns, weights);
    if (residual != nullptr) load_part<whole>(residual + start, column, columns, base);
#pragma unroll
    for (int i = 0; i < part_size<T>; ++i) {
      const float beside_x = __fmaf_rn(-along_x, values[i], base[i]);
      values[i] = __fmaf_rn(inverse, __fmul_rn(gradients[i], weights[i]), beside_x);
    }
    store_part<whole>(dx + start, column, columns, values);
  });
}

template <typename T>
int threads_of(int64_t columns) {
  return threads_for(divide_up(columns, part_size<T>), most_threads);
}

}  // namespace

void launch_rms_norm(cudaStream_t stream, GpuType x_type, const void* x, int64_t rows, int64_t columns, const float* weight, float eps,
                     GpuType type, void* y, float* inverse_rms, void* kept) {
  if (rows == 0) return;
  if (x_type != type && x_type != GpuType::f32) throw std::runtime_error("rms_norm: rounded rows for a result in f32");
  const int count = column_count("rms_norm", columns);
  with_type(type, [&](auto element) {
    using T = decltype(element);
    with_flag(whole_parts<T>(columns) && aligned(x) && aligned(weight) && aligned(y) && aligned(kept), [&](auto whole) {
      const auto of_rows = [&](const auto* source) {
        using X = std::remove_cv_t<std::remove_pointer_t<decltype(source)>>;
        launch("rms_norm", rms_norm_kernel<X, T, whole.value>, rows, threads_of<T>(columns), stream, source, count, weight, eps,
               static_cast<T*>(y), inverse_rms, static_cast<T*>(kept));
      };
      x_type == type ? of_rows(static_cast<const T*>(x)) : of_rows(static_cast<const float*>(x));
    });
  });
}

void launch_rms_norm_again(cudaStream_t stream, GpuType type, const void* x, int64_t rows, int64_t columns,
                           const float* weight, const float* inverse_rms, void* y) {
  if (rows == 0) return;
  const int count = column_count("rms_norm_again", columns);
  with_type(type, [&](auto element) {
    using T = decltype(element);
    with_flag(whole_parts<T>(columns) && aligned(x) && aligned(weight) && aligned(y), [&](auto whole) {
      launch("rms_norm_again", rms_norm_again_kernel<T, whole.value>, rows, threads_of<T>(columns), stream,
             static_cast<const T*>(x), count, weight, inverse_rms, static_cast<T*>(y));
    });
  });
}

void launch_rms_norm_backward(cudaStream_t stream, GpuType type, const void* dy, const void* x, int64_t rows,
                              int64_t columns, const float* weight, const float* inverse_rms, const void* residual,
                              void* dx) {
  if (rows == 0) return;
  const int count = column_count("rms_norm_backward", columns);
  with_type(type, [&](auto element) {
    using T = decltype(element);
    const bool all_aligned = aligned(dy) && aligned(x) && aligned(weight) && aligned(residual) && aligned(dx);
    with_flag(whole_parts<T>(columns) && all_aligned, [&](auto whole) {
      launch("rms_norm_backward", rms_norm_backward_kernel<T, whole.value>, rows, threads_of<T>(columns), stream,
             static_cast<const T*>(dy), static_cast<const T*>(x), count, weight, inverse_rms,
             static_cast<const T*>(residual), static_cast<T*>(dx));
    });
  });
}

}  // namespace cotune::cuda
