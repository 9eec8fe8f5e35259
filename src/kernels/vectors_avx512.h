/// kernels/vectors.h on AVX-512: sixteen lanes in one register. bf16 needs avx512_bf16, f32 needs avx512; with COTUNE_WIDENED bf16 does, too.
#pragma once

// g++ 12 takes the undefined pass-through operands inside its own intrinsics for mistakes.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include <immintrin.h>

#include <cstdint>

#ifdef COTUNE_WIDENED
#define COTUNE_VECTORS avx512_widened
#define COTUNE_VECTORS_BEGIN    \
  _Pragma("GCC push_options")   \
  _Pragma("GCC target(\"avx512f,avx512bw,avx512vl,avx512dq,avx2,fma\")")
#else
#define COTUNE_VECTORS avx512
#define COTUNE_VECTORS_BEGIN    \
  _Pragma("GCC push_options")   \
  _Pragma("GCC target(\"avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma\")")
#endif
#define COTUNE_VECTORS_END _Pragma("GCC pop_options")

namespace cotune::kernels {
namespace {

using Vector = __m512;
typedef uint32_t Words __attribute__((vector_size(64), may_alias));
using Lanes = __mmask16;
using FirstLanes = __mmask16;
struct AllLanes {};

/// Elements of T that a word of an operand of attention's products holds: pairs of bf16 are multiplied as they are, or widened when packed.
#ifdef COTUNE_WIDENED
template <typename T>
constexpr int64_t elements_per_word = 1;
#else
template <typename T>
constexpr int64_t elements_per_word = 4 / int64_t(sizeof(T));
#endif

COTUNE_VECTORS_BEGIN

inline __m512i raw(Words words) { return reinterpret_cast<__m512i>(words); }
inline Words words_of(__m512i raw) { return reinterpret_cast<Words>(raw); }
inline Words as_words(Vector v) { return reinterpret_cast<Words>(v); }
inline Vector as_vector(Words w) { return reinterpret_cast<Vector>(w); }

inline Vector splat(float value) { return _mm512_set1_ps(value); }
inline Words splat_word(uint32_t value) { return words_of(_mm512_set1_epi32(int(value))); }
inline Vector no_values() { return _mm512_setzero_ps(); }
inline Words no_words() { return words_of(_mm512_setzero_si512()); }
inline Words lane_numbers() { return words_of(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)); }

inline FirstLanes first_lanes(int64_t count) {
  return count >= 16 ? __mmask16(0xffff) : count <= 0 ? __mmask16(0) : __mmask16((1u << count) - 1);
}
inline Lanes lanes_from(int64_t first) { return first <= 0 ? __mmask16(0xffff) : first >= 16 ? __mmask16(0) : __mmask16(0xffff << first); }
inline Lanes no_lanes() { return 0; }
inline Lanes within(Lanes lanes, FirstLanes first) { return lanes & first; }
inline Lanes within(Lanes lanes, AllLanes) { return lanes; }
inline Lanes at_least(Words a, Words b) { return _mm512_cmpge_epu32_mask(raw(a), raw(b)); }
inline Lanes not_finite(Vector v) { return _mm512_fpclass_ps_mask(v, 0x99); }
inline bool any(Lanes lanes) { return lanes != 0; }
inline bool any_differs(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_OQ) != 0; }
inline Vector blend(Lanes lanes, Vector where_set, Vector elsewhere) { return _mm512_mask_mov_ps(elsewhere, lanes, where_set); }
inline Vector blend(AllLanes, Vector where_set, Vector) { return where_set; }
inline Vector keep(Lanes lanes, Vector v) { return _mm512_maskz_mov_ps(lanes, v); }
inline Vector keep(AllLanes, Vector v) { return v; }

inline Vector load(const float* from) { return _mm512_loadu_ps(from); }
inline Vector load(const uint16_t* from) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}
inline Vector load(const float* from, FirstLanes lanes) { return _mm512_maskz_loadu_ps(lanes, from); }
inline Vector load(const uint16_t* from, FirstLanes lanes) {
  const __m256i words = _mm256_maskz_loadu_epi16(lanes, from);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}
inline Words load_words(const void* from) { return words_of(_mm512_loadu_si512(from)); }
inline Words load_words(const void* from, FirstLanes lanes) { return words_of(_mm512_maskz_loadu_epi32(lanes, from)); }
/// Sixteen numbers of 16 bits.
inline Words load_halves(const uint16_t* from) {
  return words_of(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
}

inline Words load_halves(const uint16_t* from, FirstLanes lanes) { return words_of(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from))); }
/// The lower halves of both as 32 numbers of 16 bits, one after the other.
inline Words side_by_side(Words first, Words second) {
  return words_of(_mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(raw(first))), _mm512_cvtepi32_epi16(raw(second)), 1));
}
inline Lanes is_nan(Vector v) { return _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q); }

#ifdef COTUNE_WIDENED
inline Words rounded(Vector v);  // in kernels/vectors.h
inline __m256i as_bf16(Vector value) { return _mm512_cvtepi32_epi16(raw(rounded(value))); }
#else
inline __m256i as_bf16(Vector value) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value)); }
#endif

inline void store(float* to, Vector value) { _mm512_storeu_ps(to, value); }
inline void store(uint16_t* to, Vector value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), as_bf16(value)); }
inline void store(float* to, Vector value, FirstLanes lanes) { _mm512_mask_storeu_ps(to, lanes, value); }
inline void store(uint16_t* to, Vector value, FirstLanes lanes) { _mm256_mask_storeu_epi16(to, lanes, as_bf16(value)); }
inline void store_words(void* to, Words words) { _mm512_storeu_si512(to, raw(words)); }
inline void store_words(void* to, Words words, FirstLanes lanes) { _mm512_mask_storeu_epi32(to, lanes, raw(words)); }

inline Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }           // a·b + c
inline Vector multiply_subtract(Vector a, Vector b, Vector c) { return _mm512_fmsub_ps(a, b, c); }      // a·b − c
inline Vector subtract_product(Vector c, Vector a, Vector b) { return _mm512_fnmadd_ps(a, b, c); }      // c − a·b
inline Vector larger(Vector a, Vector b) { return _mm512_max_ps(a, b); }
inline Vector smaller(Vector a, Vector b) { return _mm512_min_ps(a, b); }
inline Vector square_root(Vector v) { return _mm512_sqrt_ps(v); }
inline Vector nearest_integer(Vector v) { return _mm512_roundscale_ps(v, 0); }
inline Vector fraction(Vector v) { return _mm512_reduce_ps(v, 9); }  // v − ⌊v⌋; 0 of an infinity
/// p · 2^⌊n⌋.
inline Vector scale_by_power(Vector p, Vector n) { return _mm512_scalef_ps(p, n); }
inline Vector rough_reciprocal(Vector v) { return _mm512_rcp14_ps(v); }  // relative error 2⁻¹⁴

/// Of the same lane of two vectors as bf16, the first in the lower half.
#ifdef COTUNE_WIDENED
inline Words pair_of_bf16(Vector first, Vector second) { return rounded(first) | (rounded(second) << 16); }
#else
inline Words pair_of_bf16(Vector first, Vector second) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
                                         19, 3, 18, 2, 17, 1, 16, 0);
  return words_of(_mm512_permutexvar_epi16(order, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first))));
}
#endif

/// Lanes i and i + 8 added.
inline __m256 halves_added(Vector v) { return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)); }
inline float lane_maximum(Vector v) { return _mm512_reduce_max_ps(v); }

/// Sixteen sums of squares in f64.
struct SquareSums {
  __m512d low, high;
};
inline SquareSums no_squares() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
inline void add_squares(Vector v, SquareSums& sums) {
  const __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
  const __m512d b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
  sums.low = _mm512_fmadd_pd(a, a, sums.low);
  sums.high = _mm512_fmadd_pd(b, b, sums.high);
}
/// Sums i and i + 8 added.
inline void store_halves_added(const SquareSums& sums, double (&lanes)[8]) { _mm512_storeu_pd(lanes, _mm512_add_pd(sums.low, sums.high)); }

inline void transpose(Words (&rows)[16]) {
  __m512i a[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(raw(rows[i]), raw(rows[i + 1]));
    a[i + 1] = _mm512_unpackhi_epi32(raw(rows[i]), raw(rows[i + 1]));
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
    rows[i] = words_of(_mm512_shuffle_i32x4(low01, low23, 0x88));
    rows[i + 8] = words_of(_mm512_shuffle_i32x4(low01, low23, 0xdd));
    rows[i + 4] = words_of(_mm512_shuffle_i32x4(high01, high23, 0x88));
    rows[i + 12] = words_of(_mm512_shuffle_i32x4(high01, high23, 0xdd));
  }
}

COTUNE_VECTORS_END

}  // namespace
}  // namespace cotune::kernels
