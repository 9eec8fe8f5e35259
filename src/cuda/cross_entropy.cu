#include <cfloat>

#include "cuda/block_sums.cuh"
#include "cuda/row_kernels.h"
#include "cuda/row_parts.cuh"

namespace cotune::cuda {
namespace {

// A block per row. Largest logit and sum of exponentials in one pass (Milakov & Gimelshein 2018), the gradient in another.
constexpr int most_threads = 512;

/// Grows with the logit, NaN above all, and of equal logits with a lower column: its largest is the first choice.
__device__ inline unsigned long long choice_key(float logit, int column) {
  const uint32_t bits = __float_as_uint(__fadd_rn(logit, 0.0f));  // −0 counts as +0
  const uint32_t order = logit != logit ? 0xFFFFFFFFu : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(order) << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(column));
}
__device__ inline int64_t chosen_column(unsigned long long key) {
  return static_cast<int64_t>(0xFFFFFFFFu - static_cast<uint32_t>(key));
}

template <typename T, bool whole, bool chooses>
__global__ void __launch_bounds__(most_threads)
    softmax_cross_entropy_kernel(const T* logits, int columns, const int32_t* labels, const float* row_scale,
                                 float* losses, T* gradient, int64_t* first_choice) {
  __shared__ float shared_maxima[warp_size], shared_sums[warp_size];
  __shared__ unsigned long long shared_choices[warp_size];
  const int64_t row = blockIdx.x;
  logits += row * columns;
  const int label = labels[row];
  const bool labelled = label >= 0;
  // Read before any thread writes a gradient in the logits' place.
  const float label_logit = label >= 0 && label < columns ? widened(logits[label]) : __uint_as_float(0x7FC00000u);

  // −FLT_MAX in place of −∞: exp(−∞ − maximum) is 0, not NaN, in a part of nothing but −∞.
  float maximum = -FLT_MAX, sum = 0;
  unsigned long long choice = 0;
  for_parts<T>(columns, [&](int column) {
    float values[part_size<T>];
    load_part<whole>(logits, column, columns, values);
    float highest = maximum;
#pragma unroll
    for (int i = 0; i < part_size<T>; ++i) {
      if (!whole && column + i >= columns) values[i] = -INFINITY;
      highest = fmaxf(highest, values[i]);  // passes over NaN
    }
    if (highest > maximum) {
      sum = __fmul_rn(sum, expf(__fsub_rn(maximum, highest)));
      maximum = highest;
    }
#pragma unroll
    for (int i = 0; i < part_size<T>; ++i) {
      sum = __fadd_rn(sum, expf(__fsub_rn(values[i], maximum)));  // NaN stays NaN, and so does +∞ − ∞
      if constexpr (chooses) {
        if (whole || column + i < columns) {
          const unsigned long long key = choice_key(values[i], column + i);
          choice = key > choice ? key : choice;
        }
      }
    }
  });
  const float row_maximum = block_maximum(maximum, -FLT_MAX, shared_maxima);
  const float row_sum = block_sum(__fmul_rn(sum, expf(__fsub_rn(maximum, row_maximum))), shared_sums);
  if constexpr (chooses) {
    const unsigned long long best = block_maximum(choice, shared_choices);
    if (threadIdx.x == 0) first_choice[row] = chosen_column(best);
  }
  if (threadIdx.x == 0) {
    losses[row] = labelled ? static_cast<float>(log(static_cast<double>(row_sum)) + static_cast<double>(row_maximum) -
                                                static_cast<double>(label_logit))
                           : 0.0f;
  }
  if (gradient == nullptr) return;

  gradient += row * columns;
  const float scale = row_scale[row];
  const float factor = label < columns ? __fdiv_rn(scale, row_sum) : label_logit;  // NaN for a label that cannot be
  for_parts<T>(columns, [&](int column) {
    float values[part_size<T>];
    load_part<whole>(logits, column, columns, values);
#pragma unroll
    for (int i = 0; i < part_size<T>; ++i) {
      values[i] = labelled ? __fmul_rn(expf(__fsub_rn(values[i], row_maximum)), factor) : 0.0f;
    }
    store_part<whole>(gradient, column, columns, values);
    // In f64: 1 − probability cancels.
    if (label >= column && label < column + part_size<T> && label < columns) {
      const double probability =
          exp(static_cast<double>(label_logit) - static_cast<double>(row_maximum)) / static_cast<double>(row_sum);
      gradient[label] = rounded<T>(static_cast<float>((probability - 1.0) * static_cast<double>(scale)));
    }
  });
}

}  // namespace

void launch_softmax_cross_entropy(cudaStream_t stream, GpuType type, const void* logits, int64_t rows, int64_t columns,
                                  const int32_t* labels, const float* row_scale, float* losses, void* gradient,
                                  int64_t* first_choice) {
  if (rows == 0) return;
  const int count = column_count("softmax_cross_entropy", columns);
  with_type(type, [&](auto element) {
    using T = decltype(element);
    const int threads = threads_for(divide_up(columns, part_size<T>), most_threads);
    with_flag(whole_parts<T>(columns) && aligned(logits) && aligned(gradient), [&](auto whole) {
      with_flag(first_choice != nullptr, [&](auto chooses) {
        launch("softmax_cross_entropy", softmax_cross_entropy_kernel<T, whole.value, chooses.value>, rows, threads,
               stream, static_cast<const T*>(logits), count, labels, row_scale, losses, static_cast<T*>(gradient),
               first_choice);
      });
    });
  });
}

}  // namespace cotune::cuda
