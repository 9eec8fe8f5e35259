/// Sixteen f32 lanes, whatever registers they are in: what the row kernels and attention are written in. A source file of
/// them is compiled once for each instruction set (src/CMakeLists.txt): with COTUNE_AVX2 for kernels/vectors_avx2.h, with COTUNE_WIDENED or
/// neither for kernels/vectors_avx512.h, in the namespace COTUNE_VECTORS, by kernels/by_vectors.cc. What stands between COTUNE_VECTORS_BEGIN and
/// COTUNE_VECTORS_END is compiled for these instructions, the rest for any x86-64; callers must have asked vectors_for (isa.h).
///
///   Vector       16 f32; operators + − · /, rounded like those of f32, though a product may be added unrounded
///   Words        16 uint32; operators + · ^ | & << >>
///   Lanes        a set of lanes
///   FirstLanes   the first so many lanes, which loads and stores can be limited to; blend, keep and within take them too
///   AllLanes     all of them, for the body of a loop that runs without limits
///
/// bf16 is loaded widened and stored rounded to nearest even, NaN as NaN. Elements outside of the lanes are not read or written, and
/// read as 0.
#pragma once

#ifdef COTUNE_AVX2
#include "kernels/vectors_avx2.h"
#else
#include "kernels/vectors_avx512.h"
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "kernels/isa.h"
#include "kernels/matrix.h"

namespace cotune::kernels {
namespace {

constexpr int64_t lane_count = 16;
constexpr float log2_of_e = 1.44269504088896341f;

/// Calls body(uint16_t{}) for bf16 and body(float{}) for f32.
template <typename Body>
void with_element(DType dtype, Body body) {
  if (dtype == DType::bf16) {
    body(uint16_t{});
  } else {
    body(float{});
  }
}

COTUNE_VECTORS_BEGIN

inline Vector load(const float* from, AllLanes) { return load(from); }
inline Vector load(const uint16_t* from, AllLanes) { return load(from); }
inline void store(float* to, Vector value, AllLanes) { store(to, value); }
inline void store(uint16_t* to, Vector value, AllLanes) { store(to, value); }

/// Calls body(offset, lanes) for each sixteen of `count` elements.
template <typename Body>
inline void for_lanes(int64_t count, Body body) {
  int64_t offset = 0;
  for (; offset + lane_count <= count; offset += lane_count) body(offset, AllLanes{});
  if (offset < count) body(offset, first_lanes(count - offset));
}

/// bf16 in the lower halves: to nearest even, NaN stays NaN. Without instructions for it.
inline Words rounded(Vector v) {
  const Words bits = as_words(v), upper = bits >> 16;
  const Words even = (bits + ((upper & splat_word(1)) + splat_word(0x7fff))) >> 16;
  return as_words(blend(is_nan(v), as_vector(upper | splat_word(0x40)), as_vector(even)));
}

/// The sum of the lanes, in a fixed order.
inline float lane_sum(Vector v) {
  const __m256 half = halves_added(v);
  const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}

/// e^x to within 1 ulp where the result is normal; 0 below, infinity above, NaN for NaN.
inline Vector exp(Vector x) {
  x = larger(splat(-150.f), smaller(splat(150.f), x));
  const Vector n = nearest_integer(x * splat(1.44269504088896341f));
  Vector r = subtract_product(x, n, splat(0.693359375f));
  r = subtract_product(r, n, splat(-2.12194440e-4f));
  Vector p = splat(1.9875691500e-4f);  // coefficients: Cephes expf (Moshier)
  p = multiply_add(p, r, splat(1.3981999507e-3f));
  p = multiply_add(p, r, splat(8.3334519073e-3f));
  p = multiply_add(p, r, splat(4.1665795894e-2f));
  p = multiply_add(p, r, splat(1.6666665459e-1f));
  p = multiply_add(p, r, splat(5.0000001201e-1f));
  p = multiply_add(p, r * r, r) + splat(1.f);
  return scale_by_power(p, n);
}

/// 2^x for x up to 127: relative error 3e-6 for bf16, 1e-7 for f32. 2^−∞ = 0. Coefficients: relative minimax fit on [0, 1].
template <typename T>
inline Vector exp2(Vector x) {
  const Vector r = fraction(x);
  Vector p;
  if constexpr (sizeof(T) == 2) {
    p = splat(1.3534121222e-02f);
    p = multiply_add(p, r, splat(5.2011480748e-02f));
    p = multiply_add(p, r, splat(2.4144279997e-01f));
    p = multiply_add(p, r, splat(6.9300380885e-01f));
  } else {
    p = splat(2.1702226848e-04f);
    p = multiply_add(p, r, splat(1.2439693800e-03f));
    p = multiply_add(p, r, splat(9.6788406464e-03f));
    p = multiply_add(p, r, splat(5.5483341974e-02f));
    p = multiply_add(p, r, splat(2.4022983633e-01f));
    p = multiply_add(p, r, splat(6.9314698383e-01f));
  }
  p = multiply_add(p, r, splat(1.f));
  return scale_by_power(p, x);
}

/// 1/x for normal x of ordinary size, to within 1 ulp or so.
inline Vector reciprocal(Vector x) {
  const Vector guess = rough_reciprocal(x);
  return multiply_add(guess, subtract_product(splat(1.f), x, guess), guess);
}

COTUNE_VECTORS_END

}  // namespace
}  // namespace cotune::kernels
