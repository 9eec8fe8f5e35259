#include "kernels/optimizer_blocks.h"
#include "kernels/vectors_avx512.h"

namespace cotune::kernels {
namespace {

COTUNE_AVX512_BEGIN

inline __mmask16 not_finite(__m512 v) { return _mm512_fpclass_ps_mask(v, 0x99); }  // NaNs and infinities

bool adamw_block(const AdamwScalars& s, int64_t count, const float* gradient, float* parameter, float* first,
                 float* second) {
  const __m512 root_correction2 = _mm512_set1_ps(s.root_correction2), eps = _mm512_set1_ps(s.eps);
  __mmask16 bad = 0;
  for_lanes(count, [&](int64_t i, __mmask16 mask) {
    const __m512 g = _mm512_mul_ps(load(gradient + i, mask), _mm512_set1_ps(s.multiplier));
    __m512 p = _mm512_mul_ps(load(parameter + i, mask), _mm512_set1_ps(s.decay));
    __m512 m = load(first + i, mask);
    m = _mm512_fmadd_ps(_mm512_set1_ps(s.one_minus_beta1), _mm512_sub_ps(g, m), m);
    __m512 v = _mm512_mul_ps(load(second + i, mask), _mm512_set1_ps(s.beta2));
    v = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_set1_ps(s.one_minus_beta2), g), g, v);
    const __m512 denominator = _mm512_add_ps(_mm512_div_ps(_mm512_sqrt_ps(v), root_correction2), eps);
    p = _mm512_add_ps(p, _mm512_div_ps(_mm512_mul_ps(_mm512_set1_ps(s.negative_step_size), m), denominator));
    bad |= (not_finite(p) | not_finite(m) | not_finite(v)) & mask;
    store(parameter + i, p, mask);
    store(first + i, m, mask);
    store(second + i, v, mask);
  });
  return bad != 0;
}

bool sgd_block(const SgdScalars& s, int64_t count, const float* gradient, float* parameter, float* momentum_buffer) {
  const __m512 momentum = _mm512_set1_ps(s.momentum);
  __mmask16 bad = 0;
  for_lanes(count, [&](int64_t i, __mmask16 mask) {
    const __m512 p = load(parameter + i, mask);
    __m512 g = _mm512_mul_ps(load(gradient + i, mask), _mm512_set1_ps(s.multiplier));
    g = _mm512_fmadd_ps(_mm512_set1_ps(s.weight_decay), p, g);
    if (s.momentum != 0) {
      __m512 b = g;
      if (!s.first) {
        b = _mm512_mul_ps(load(momentum_buffer + i, mask), momentum);
        b = _mm512_fmadd_ps(_mm512_set1_ps(s.one_minus_dampening), g, b);
      }
      store(momentum_buffer + i, b, mask);
      bad |= not_finite(b) & mask;
      g = s.nesterov ? _mm512_fmadd_ps(momentum, b, g) : b;
    }
    const __m512 next = _mm512_fnmadd_ps(_mm512_set1_ps(s.lr), g, p);
    bad |= not_finite(next) & mask;
    store(parameter + i, next, mask);
  });
  return bad != 0;
}

double squares_block(const float* values, int64_t count) {
  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
  for_lanes(count, [&](int64_t i, __mmask16 mask) {
    const __m512 v = load(values + i, mask);
    const __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
    const __m512d b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
    low = _mm512_fmadd_pd(a, a, low);
    high = _mm512_fmadd_pd(b, b, high);
  });
  alignas(64) double lanes[8];
  _mm512_store_pd(lanes, _mm512_add_pd(low, high));
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

COTUNE_AVX512_END

}  // namespace

const OptimizerBlocks optimizer_blocks_avx512 = {.adamw = adamw_block, .sgd = sgd_block, .squares = squares_block};

}  // namespace cotune::kernels
