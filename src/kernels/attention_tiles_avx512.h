/// Inside attention's kernels: its products on AVX-512, as f32 multiply-adds, or as pairs of bf16 unless these are widened (COTUNE_WIDENED).
/// Each translation unit gets its own copy.
#pragma once

#include "kernels/attention_blocks.h"

namespace cotune::kernels {
namespace {

COTUNE_VECTORS_BEGIN

inline __m512 multiply_add(float, __m512i a, __m512i b, __m512 c) {
  return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), c);
}
inline __m512 multiply_add(uint16_t, __m512i a, __m512i b, __m512 c) {
#ifdef COTUNE_WIDENED
  return multiply_add(float{}, a, b, c);
#else
  return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
#endif
}

template <typename T, int rows, int vectors>
void multiply_tile(const ProductOperands& o, int64_t i, int64_t j) {
  __m512 sums[rows][vectors];
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) {
      sums[r][v] = o.accumulate ? _mm512_loadu_ps(o.c + (i + r) * o.ldc + j + v * 16) : _mm512_setzero_ps();
    }
  }
  for (int64_t g = 0; g < o.groups; ++g) {
    const uint32_t* a = o.a + g * o.a_step + i * o.lda;
    const uint32_t* b = o.b + g * o.b_step + j;
    for (int64_t w = 0; w < o.words; ++w) {
      __m512i right[vectors];
      for (int v = 0; v < vectors; ++v) right[v] = _mm512_loadu_si512(b + w * o.ldb + v * 16);
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        const __m512i left = _mm512_set1_epi32(int(a[r * o.lda + w]));
        for (int v = 0; v < vectors; ++v) sums[r][v] = multiply_add(T{}, left, right[v], sums[r][v]);
      }
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) _mm512_storeu_ps(o.c + (i + r) * o.ldc + j + v * 16, sums[r][v]);
  }
}

template <typename T>
struct VectorProducts {
  using Element = T;
  static constexpr int64_t summed_multiple = 16;

  static void multiply(const ProductOperands& o) {
    int64_t j = 0;
    for (; j + 32 <= o.n; j += 32) {
      for (int64_t i = 0; i < o.m; i += 8) multiply_tile<T, 8, 2>(o, i, j);
    }
    for (; j < o.n; j += 16) {
      for (int64_t i = 0; i < o.m; i += 16) multiply_tile<T, 16, 1>(o, i, j);
    }
  }
};

COTUNE_VECTORS_END

}  // namespace
}  // namespace cotune::kernels
