/// kernels/vectors.h on AVX2 and FMA: sixteen lanes in two registers.
#pragma once

// g++ 12 takes the undefined pass-through operands inside its own intrinsics for mistakes.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define COTUNE_VECTORS avx2
#define COTUNE_VECTORS_BEGIN    \
  _Pragma("GCC push_options")   \
  _Pragma("GCC target(\"avx2,fma\")")
#define COTUNE_VECTORS_END _Pragma("GCC pop_options")

namespace cotune::kernels {
namespace {

struct Vector {
  __m256 low, high;
};
struct Words {
  __m256i low, high;
};
struct Lanes {
  __m256i low, high;  ///< all bits of a lane, or none
};
struct FirstLanes {
  int64_t count;
};
struct AllLanes {};

/// Elements of T that a word of an operand of attention's products holds: bf16 is widened when it is packed.
template <typename T>
constexpr int64_t elements_per_word = 1;

COTUNE_VECTORS_BEGIN

inline Vector operator+(Vector a, Vector b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Vector operator-(Vector a, Vector b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Vector operator*(Vector a, Vector b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Vector operator/(Vector a, Vector b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Words operator+(Words a, Words b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
inline Words operator*(Words a, Words b) { return {_mm256_mullo_epi32(a.low, b.low), _mm256_mullo_epi32(a.high, b.high)}; }
inline Words operator^(Words a, Words b) { return {_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)}; }
inline Words operator|(Words a, Words b) { return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)}; }
inline Words operator&(Words a, Words b) { return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)}; }
inline Words operator<<(Words a, int bits) { return {_mm256_slli_epi32(a.low, bits), _mm256_slli_epi32(a.high, bits)}; }
inline Words operator>>(Words a, int bits) { return {_mm256_srli_epi32(a.low, bits), _mm256_srli_epi32(a.high, bits)}; }

inline Words as_words(Vector v) { return {_mm256_castps_si256(v.low), _mm256_castps_si256(v.high)}; }
inline Vector as_vector(Words w) { return {_mm256_castsi256_ps(w.low), _mm256_castsi256_ps(w.high)}; }

inline Vector splat(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline Words splat_word(uint32_t value) { return {_mm256_set1_epi32(int(value)), _mm256_set1_epi32(int(value))}; }
inline Vector no_values() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Words no_words() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Words lane_numbers() { return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)}; }

inline FirstLanes first_lanes(int64_t count) { return {count <= 0 ? 0 : count >= 16 ? 16 : count}; }
inline Lanes lanes_from(int64_t first) {
  const __m256i before = _mm256_set1_epi32(int(first <= 0 ? 0 : first >= 16 ? 16 : first) - 1);
  const Words numbers = lane_numbers();
  return {_mm256_cmpgt_epi32(numbers.low, before), _mm256_cmpgt_epi32(numbers.high, before)};
}
inline Lanes lanes_of(Lanes lanes) { return lanes; }
inline Lanes lanes_of(FirstLanes lanes) {
  const __m256i end = _mm256_set1_epi32(int(lanes.count));
  const Words numbers = lane_numbers();
  return {_mm256_cmpgt_epi32(end, numbers.low), _mm256_cmpgt_epi32(end, numbers.high)};
}
inline Lanes operator|(Lanes a, Lanes b) { return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)}; }
inline Lanes no_lanes() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Lanes within(Lanes a, FirstLanes first) {
  const Lanes b = lanes_of(first);
  return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
}
inline Lanes within(Lanes lanes, AllLanes) { return lanes; }
inline Lanes at_least(Words a, Words b) {
  return {_mm256_cmpeq_epi32(_mm256_max_epu32(a.low, b.low), a.low), _mm256_cmpeq_epi32(_mm256_max_epu32(a.high, b.high), a.high)};
}
inline Lanes not_finite(Vector v) {
  const __m256i exponent = _mm256_set1_epi32(0x7f800000);
  const Words words = as_words(v) & Words{exponent, exponent};
  return {_mm256_cmpeq_epi32(words.low, exponent), _mm256_cmpeq_epi32(words.high, exponent)};
}
inline bool any(Lanes lanes) { return !_mm256_testz_si256(_mm256_or_si256(lanes.low, lanes.high), _mm256_set1_epi32(-1)); }
inline bool any_differs(Vector a, Vector b) {
  return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(a.low, b.low, _CMP_NEQ_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_NEQ_OQ))) != 0;
}
template <typename L>
inline Vector blend(L some, Vector where_set, Vector elsewhere) {
  const Lanes lanes = lanes_of(some);
  return {_mm256_blendv_ps(elsewhere.low, where_set.low, _mm256_castsi256_ps(lanes.low)),
          _mm256_blendv_ps(elsewhere.high, where_set.high, _mm256_castsi256_ps(lanes.high))};
}
inline Vector blend(AllLanes, Vector where_set, Vector) { return where_set; }
template <typename L>
inline Vector keep(L some, Vector v) {
  const Lanes lanes = lanes_of(some);
  return {_mm256_and_ps(v.low, _mm256_castsi256_ps(lanes.low)), _mm256_and_ps(v.high, _mm256_castsi256_ps(lanes.high))};
}
inline Vector keep(AllLanes, Vector v) { return v; }

inline Vector load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
/// Sixteen numbers of 16 bits.
inline Words load_halves(const uint16_t* from) {
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))),
          _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 8)))};
}
inline Vector load(const uint16_t* from) { return as_vector(load_halves(from) << 16); }
inline Words load_words(const void* from) {
  const auto* at = static_cast<const __m256i*>(from);
  return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}
inline Words load_words(const void* from, FirstLanes first) {
  const auto* at = static_cast<const int*>(from);
  const Lanes lanes = lanes_of(first);
  return {_mm256_maskload_epi32(at, lanes.low), _mm256_maskload_epi32(at + 8, lanes.high)};
}
inline Vector load(const float* from, FirstLanes lanes) { return as_vector(load_words(from, lanes)); }
inline Words load_halves(const uint16_t* from, FirstLanes lanes) {
  if (lanes.count == 16) return load_halves(from);
  uint16_t halves[16] = {};
  std::memcpy(halves, from, size_t(lanes.count) * 2);
  return load_halves(halves);
}
inline Vector load(const uint16_t* from, FirstLanes lanes) { return as_vector(load_halves(from, lanes) << 16); }
/// Sixteen numbers of 16 bits from the lower halves, whose upper halves are 0.
inline __m256i halves_of(Words words) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(words.low, words.high), 0xd8);  // packs within 128 bits
}
/// The lower halves of both as 32 numbers of 16 bits, one after the other.
inline Words side_by_side(Words first, Words second) { return {halves_of(first), halves_of(second)}; }
inline Lanes is_nan(Vector v) {
  return {_mm256_castps_si256(_mm256_cmp_ps(v.low, v.low, _CMP_UNORD_Q)), _mm256_castps_si256(_mm256_cmp_ps(v.high, v.high, _CMP_UNORD_Q))};
}

inline Words rounded(Vector v);  // in kernels/vectors.h

inline void store(float* to, Vector value) {
  _mm256_storeu_ps(to, value.low);
  _mm256_storeu_ps(to + 8, value.high);
}
inline void store(uint16_t* to, Vector value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves_of(rounded(value)));
}
inline void store_words(void* to, Words words) {
  auto* at = static_cast<__m256i*>(to);
  _mm256_storeu_si256(at, words.low);
  _mm256_storeu_si256(at + 1, words.high);
}
inline void store_words(void* to, Words words, FirstLanes first) {
  auto* at = static_cast<int*>(to);
  const Lanes lanes = lanes_of(first);
  _mm256_maskstore_epi32(at, lanes.low, words.low);
  _mm256_maskstore_epi32(at + 8, lanes.high, words.high);
}
inline void store(float* to, Vector value, FirstLanes first) {
  const Lanes lanes = lanes_of(first);
  _mm256_maskstore_ps(to, lanes.low, value.low);
  _mm256_maskstore_ps(to + 8, lanes.high, value.high);
}
inline void store(uint16_t* to, Vector value, FirstLanes lanes) {
  if (lanes.count == 16) return store(to, value);
  uint16_t halves[16];
  store(halves, value);
  std::memcpy(to, halves, size_t(lanes.count) * 2);
}

inline Vector multiply_add(Vector a, Vector b, Vector c) {  // a·b + c
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Vector multiply_subtract(Vector a, Vector b, Vector c) {  // a·b − c
  return {_mm256_fmsub_ps(a.low, b.low, c.low), _mm256_fmsub_ps(a.high, b.high, c.high)};
}
inline Vector subtract_product(Vector c, Vector a, Vector b) {  // c − a·b
  return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}
inline Vector larger(Vector a, Vector b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Vector smaller(Vector a, Vector b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline Vector square_root(Vector v) { return {_mm256_sqrt_ps(v.low), _mm256_sqrt_ps(v.high)}; }
inline Vector nearest_integer(Vector v) {
  return {_mm256_round_ps(v.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(v.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Vector floor(Vector v) { return {_mm256_floor_ps(v.low), _mm256_floor_ps(v.high)}; }
/// v − ⌊v⌋; 0 of what is below every number of scale_by_power.
inline Vector fraction(Vector v) {
  const Vector bounded = larger(splat(-300.f), v);  // NaN stays
  return bounded - floor(bounded);
}
/// 2^n for whole n up to 127; 0 below −126.
inline __m256 power_of_two(__m256 n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_max_epi32(biased, _mm256_setzero_si256()), 23));
}
/// p · 2^⌊n⌋ for p of ordinary size.
inline Vector scale_by_power(Vector p, Vector n) {
  n = floor(larger(splat(-300.f), smaller(splat(254.f), n)));
  const Vector half = floor(n * splat(0.5f)), rest = n - half;
  const Vector first = {power_of_two(half.low), power_of_two(half.high)}, second = {power_of_two(rest.low), power_of_two(rest.high)};
  return p * first * second;
}
inline Vector rough_reciprocal(Vector v) {  // relative error 2⁻²²
  const Vector guess = {_mm256_rcp_ps(v.low), _mm256_rcp_ps(v.high)};
  return multiply_add(guess, subtract_product(splat(1.f), v, guess), guess);
}

/// Of the same lane of two vectors as bf16, the first in the lower half.
inline Words pair_of_bf16(Vector first, Vector second) { return rounded(first) | (rounded(second) << 16); }

/// Lanes i and i + 8 added.
inline __m256 halves_added(Vector v) { return _mm256_add_ps(v.low, v.high); }
inline float lane_maximum(Vector v) {
  const __m256 half = _mm256_max_ps(v.low, v.high);
  const __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
}

/// Sixteen sums of squares in f64.
struct SquareSums {
  __m256d part[4];
};
inline SquareSums no_squares() { return {{_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()}}; }
inline void add_squares(Vector v, SquareSums& sums) {
  const __m128 quarters[4] = {_mm256_castps256_ps128(v.low), _mm256_extractf128_ps(v.low, 1), _mm256_castps256_ps128(v.high),
                              _mm256_extractf128_ps(v.high, 1)};
  for (int i = 0; i < 4; ++i) {
    const __m256d wide = _mm256_cvtps_pd(quarters[i]);
    sums.part[i] = _mm256_fmadd_pd(wide, wide, sums.part[i]);
  }
}
/// Sums i and i + 8 added.
inline void store_halves_added(const SquareSums& sums, double (&lanes)[8]) {
  _mm256_storeu_pd(lanes, _mm256_add_pd(sums.part[0], sums.part[2]));
  _mm256_storeu_pd(lanes + 4, _mm256_add_pd(sums.part[1], sums.part[3]));
}

inline void transpose_eight(__m256i (&rows)[8]) {
  __m256i a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
    a[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
  }
}
inline void transpose(Words (&rows)[16]) {
  __m256i upper_left[8], upper_right[8], lower_left[8], lower_right[8];
  for (int i = 0; i < 8; ++i) {
    upper_left[i] = rows[i].low;
    upper_right[i] = rows[i].high;
    lower_left[i] = rows[i + 8].low;
    lower_right[i] = rows[i + 8].high;
  }
  transpose_eight(upper_left);
  transpose_eight(upper_right);
  transpose_eight(lower_left);
  transpose_eight(lower_right);
  for (int i = 0; i < 8; ++i) {
    rows[i] = {upper_left[i], lower_left[i]};
    rows[i + 8] = {upper_right[i], lower_right[i]};
  }
}

COTUNE_VECTORS_END

}  // namespace
}  // namespace cotune::kernels
