/// Sixteen f32 lanes: loads and stores of both dtypes, exponentials, sums and transposition, shared by the AVX-512
/// kernels. The functions carry their own target, so that the files that use them are compiled for any x86-64; callers
/// must have checked cpu_features(), which with_element does. bf16 needs avx512_bf16, f32 needs avx512.
#pragma once

// g++ 12 takes the undefined pass-through operands inside its own intrinsics for mistakes.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "kernels/isa.h"
#include "kernels/matrix.h"

/// Opens and closes a stretch of source compiled for the vector kernels.
#define COTUNE_AVX512_BEGIN     \
  _Pragma("GCC push_options")   \
  _Pragma("GCC target(\"avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma\")")
#define COTUNE_AVX512_END _Pragma("GCC pop_options")

namespace cotune::kernels {
namespace {

constexpr int64_t lane_count = 16;
constexpr float log2_of_e = 1.44269504088896341f;

/// Calls body(uint16_t{}) for bf16 and body(float{}) for f32.
template <typename Body>
void with_element(DType dtype, Body body) {
  const CpuFeatures& features = cpu_features();
  if (dtype == DType::bf16) {
    COTUNE_CHECK(features.avx512_bf16, "this kernel needs AVX-512 BF16");
    body(uint16_t{});
  } else {
    COTUNE_CHECK(features.avx512, "this kernel needs AVX-512");
    body(float{});
  }
}

COTUNE_AVX512_BEGIN

/// The first `count` lanes (all of them from 16 on).
inline __mmask16 first_lanes(int64_t count) {
  return count >= lane_count ? __mmask16(0xffff) : __mmask16((1u << count) - 1);
}

inline __m512 load(const float* from) { return _mm512_loadu_ps(from); }
inline __m512 load(const uint16_t* from) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}
inline __m512 load(const float* from, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, from); }
inline __m512 load(const uint16_t* from, __mmask16 mask) {
  const __m256i words = _mm256_maskz_loadu_epi16(mask, from);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

inline void store(float* to, __m512 value) { _mm512_storeu_ps(to, value); }
inline void store(uint16_t* to, __m512 value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value)));
}
inline void store(float* to, __m512 value, __mmask16 mask) { _mm512_mask_storeu_ps(to, mask, value); }
inline void store(uint16_t* to, __m512 value, __mmask16 mask) {
  _mm256_mask_storeu_epi16(to, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value)));
}

/// Calls body(offset, mask) for each sixteen of `count` elements.
template <typename Body>
inline void for_lanes(int64_t count, Body body) {
  int64_t offset = 0;
  for (; offset + lane_count <= count; offset += lane_count) body(offset, __mmask16(0xffff));
  if (offset < count) body(offset, first_lanes(count - offset));
}

/// e^x to within 1 ulp where the result is normal; 0 below, infinity above, NaN for NaN.
inline __m512 exp(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-150.f), _mm512_min_ps(_mm512_set1_ps(150.f), x));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)), 0);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);  // coefficients: Cephes expf (Moshier)
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.f));
  return _mm512_scalef_ps(p, n);
}

/// 2^x: relative error 3e-6 for bf16, 1e-7 for f32. 2^−∞ = 0. Coefficients: relative minimax fit on [0, 1].
template <typename T>
inline __m512 exp2(__m512 x) {
  const __m512 r = _mm512_reduce_ps(x, 9);  // x − floor(x)
  __m512 p;
  if constexpr (sizeof(T) == 2) {
    p = _mm512_set1_ps(1.3534121222e-02f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.2011480748e-02f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4144279997e-01f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9300380885e-01f));
  } else {
    p = _mm512_set1_ps(2.1702226848e-04f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.2439693800e-03f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.6788406464e-03f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.5483341974e-02f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4022983633e-01f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9314698383e-01f));
  }
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.f));
  return _mm512_scalef_ps(p, x);
}

/// 1/x for normal x of ordinary size, to within 1 ulp or so.
inline __m512 reciprocal(__m512 x) {
  const __m512 guess = _mm512_rcp14_ps(x);
  return _mm512_fmadd_ps(guess, _mm512_fnmadd_ps(x, guess, _mm512_set1_ps(1.f)), guess);
}

/// The sum of the lanes, in a fixed order.
inline float lane_sum(__m512 v) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}

/// Transposes a 16 × 16 matrix of 32-bit words held in sixteen registers.
inline void transpose_words(__m512i (&rows)[16]) {
  __m512i a[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  __m512i b[16];
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512i low01 = _mm512_shuffle_i32x4(b[i], b[i + 4], 0x88);
    const __m512i high01 = _mm512_shuffle_i32x4(b[i], b[i + 4], 0xdd);
    const __m512i low23 = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0x88);
    const __m512i high23 = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0xdd);
    rows[i] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    rows[i + 4] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    rows[i + 12] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
}

COTUNE_AVX512_END

}  // namespace
}  // namespace cotune::kernels
