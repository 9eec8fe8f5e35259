#include "kernels/adamw.h"

#include <cmath>
#include <vector>

#include "kernels/vectors_avx512.h"

namespace cotune::kernels {
namespace {

constexpr int64_t block_elements = 1 << 14;  // the unit of work, and of the fixed order of sums

struct AdamwScalars {
  float multiplier, decay, one_minus_beta1, beta2, one_minus_beta2, root_correction2, eps, negative_step_size;
};

struct SgdScalars {
  float multiplier, lr, momentum, one_minus_dampening, weight_decay;
  bool first, nesterov;
};

COTUNE_AVX512_BEGIN

inline __mmask16 not_finite(__m512 v) { return _mm512_fpclass_ps_mask(v, 0x99); }  // NaNs and infinities

/// The three return whether something is not finite.
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

bool finite_block(const float* values, int64_t count) {
  __mmask16 bad = 0;
  for_lanes(count, [&](int64_t i, __mmask16 mask) { bad |= not_finite(load(values + i, mask)); });
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

/// Calls body(begin, count, block) for fixed blocks, in parallel; returns whether any call returned true.
template <typename Body>
bool any_block(int64_t count, Body body) {
  COTUNE_CHECK(cpu_features().avx512, "this kernel needs AVX-512");
  const int64_t blocks = (count + block_elements - 1) / block_elements;
  int any = 0;
#pragma omp parallel for schedule(static) reduction(| : any) if (blocks > 1)
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t begin = b * block_elements;
    any |= body(begin, std::min(block_elements, count - begin), b) ? 1 : 0;
  }
  return any != 0;
}

}  // namespace

bool adamw_step(const AdamwSettings& settings, int64_t step, float gradient_multiplier, int64_t count,
                const float* gradient, float* parameter, float* first_moment, float* second_moment) {
  COTUNE_CHECK(step >= 1, "step {}", step);
  const double correction1 = 1 - std::pow(settings.beta1, double(step));
  const double correction2 = 1 - std::pow(settings.beta2, double(step));
  const AdamwScalars scalars = {
      .multiplier = gradient_multiplier,
      .decay = float(1 - settings.lr * settings.weight_decay),
      .one_minus_beta1 = float(1 - settings.beta1),
      .beta2 = float(settings.beta2),
      .one_minus_beta2 = float(1 - settings.beta2),
      .root_correction2 = float(std::sqrt(correction2)),
      .eps = float(settings.eps),
      .negative_step_size = float(-settings.lr / correction1),
  };
  return !any_block(count, [&](int64_t begin, int64_t n, int64_t) {
    return adamw_block(scalars, n, gradient + begin, parameter + begin, first_moment + begin, second_moment + begin);
  });
}

bool sgd_step(const SgdSettings& settings, int64_t step, float gradient_multiplier, int64_t count,
              const float* gradient, float* parameter, float* momentum_buffer) {
  COTUNE_CHECK(step >= 1, "step {}", step);
  COTUNE_CHECK(settings.momentum == 0 || momentum_buffer != nullptr);
  const SgdScalars scalars = {
      .multiplier = gradient_multiplier,
      .lr = float(settings.lr),
      .momentum = float(settings.momentum),
      .one_minus_dampening = float(1 - settings.dampening),
      .weight_decay = float(settings.weight_decay),
      .first = step == 1,
      .nesterov = settings.nesterov,
  };
  return !any_block(count, [&](int64_t begin, int64_t n, int64_t) {
    return sgd_block(scalars, n, gradient + begin, parameter + begin,
                     momentum_buffer == nullptr ? nullptr : momentum_buffer + begin);
  });
}

double sum_of_squares(const float* gradient, int64_t count) {
  std::vector<double> partial((count + block_elements - 1) / block_elements);
  any_block(count, [&](int64_t begin, int64_t n, int64_t block) {
    partial[block] = squares_block(gradient + begin, n);
    return false;
  });
  double total = 0;
  for (const double p : partial) total += p;
  return total;
}

bool all_finite(const float* values, int64_t count) {
  return !any_block(count, [&](int64_t begin, int64_t n, int64_t) { return finite_block(values + begin, n); });
}

}  // namespace cotune::kernels
