/// Attention products on AVX2: f32 multiply-adds of 5 or 6 rows by 16 columns; bf16 is widened when operands are packed.
#define COTUNE_AVX2
#include "kernels/attention_blocks.h"

namespace cotune::kernels {
namespace {

COTUNE_VECTORS_BEGIN

template <int rows>
void multiply_tile(const ProductOperands& o, int64_t i, int64_t j) {
  __m256 low[rows], high[rows];
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
    const Vector before = o.accumulate ? load(o.c + (i + r) * o.ldc + j) : no_values();
    low[r] = before.low;
    high[r] = before.high;
  }
  for (int64_t g = 0; g < o.groups; ++g) {
    const auto* a = reinterpret_cast<const float*>(o.a + g * o.a_step + i * o.lda);
    const auto* b = reinterpret_cast<const float*>(o.b + g * o.b_step + j);
    for (int64_t w = 0; w < o.words; ++w) {
      const Vector right = load(b + w * o.ldb);
#pragma GCC unroll 6
      for (int r = 0; r < rows; ++r) {
        const __m256 left = _mm256_broadcast_ss(a + r * o.lda + w);
        low[r] = _mm256_fmadd_ps(left, right.low, low[r]);
        high[r] = _mm256_fmadd_ps(left, right.high, high[r]);
        __asm__("" : "+x"(low[r]), "+x"(high[r]));  // in registers, row by row, as in matrix_kernels_avx2.cc
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) store(o.c + (i + r) * o.ldc + j, {low[r], high[r]});
}

template <typename T>
struct VectorProducts {
  using Element = T;
  static constexpr int64_t summed_multiple = 16;

  static void multiply(const ProductOperands& o) {
    for (int64_t j = 0; j < o.n; j += 16) {
      for (int64_t i = 0; i < o.m; i += 16) {
        multiply_tile<6>(o, i, j);
        multiply_tile<5>(o, i + 6, j);
        multiply_tile<5>(o, i + 11, j);
      }
    }
  }
};

COTUNE_VECTORS_END

}  // namespace

const AttentionKernels& attention_f32_avx2() { return attention_by<VectorProducts<float>>(); }
const AttentionKernels& attention_bf16_avx2() { return attention_by<VectorProducts<uint16_t>>(); }

}  // namespace cotune::kernels
