#include "kernels/dropout.h"

#include <cmath>

#include "base/random.h"
#include "kernels/vectors_avx512.h"

namespace cotune::kernels {
namespace {

constexpr int64_t parallel_elements = 1 << 14;
constexpr uint32_t feature_factor = 0x9E3779B1u;
constexpr uint32_t factor1 = 0x85EBCA6Bu;
constexpr uint32_t factor2 = 0xC2B2AE35u;

uint64_t row_key(const DropoutSite& site, uint64_t example_key, int32_t position) {
  return mix_key(mix_key(site.key, example_key), uint64_t(int64_t(position)));
}

uint32_t threshold_of(const DropoutSite& site) {
  COTUNE_CHECK(site.probability >= 0 && site.probability < 1, "dropout probability {}", site.probability);
  return uint32_t(std::floor(double(site.probability) * 4294967296.0));
}

float scale_of(const DropoutSite& site) { return float(1.0 / (1.0 - double(site.probability))); }

uint32_t mix_round(uint32_t x) {
  x ^= x >> 16;
  x *= factor1;
  x ^= x >> 13;
  x *= factor2;
  return x ^ (x >> 16);
}

COTUNE_AVX512_BEGIN

inline __m512i mix_round(__m512i x) {
  x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
  x = _mm512_mullo_epi32(x, _mm512_set1_epi32(int(factor1)));
  x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 13));
  x = _mm512_mullo_epi32(x, _mm512_set1_epi32(int(factor2)));
  return _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
}

/// Calls body(offset, lanes, kept lanes) for each sixteen features of a row.
template <typename Body>
inline void for_kept(uint64_t key, uint32_t threshold, int64_t features, Body body) {
  const __m512i low = _mm512_set1_epi32(int(uint32_t(key)));
  const __m512i high = _mm512_set1_epi32(int(uint32_t(key >> 32)));
  const __m512i limit = _mm512_set1_epi32(int(threshold));
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  for_lanes(features, [&](int64_t c, __mmask16 mask) {
    const __m512i feature = _mm512_add_epi32(lanes, _mm512_set1_epi32(int(c)));
    __m512i h = _mm512_mullo_epi32(feature, _mm512_set1_epi32(int(feature_factor)));
    h = mix_round(_mm512_xor_si512(mix_round(_mm512_xor_si512(h, low)), high));
    body(c, mask, _mm512_cmpge_epu32_mask(h, limit));
  });
}

template <typename T>
void mask_row(uint64_t key, uint32_t threshold, float scale, int64_t features, const T* x, T* y) {
  const __m512 s = _mm512_set1_ps(scale);
  for_kept(key, threshold, features, [&](int64_t c, __mmask16 mask, __mmask16 kept) {
    store(y + c, _mm512_maskz_mul_ps(kept, load(x + c, mask), s), mask);
  });
}

template <typename T>
void add_masked_row(uint64_t key, uint32_t threshold, float scale, int64_t features, const T* dy, T* dx) {
  const __m512 s = _mm512_set1_ps(scale);
  for_kept(key, threshold, features, [&](int64_t c, __mmask16 mask, __mmask16 kept) {
    const __m512 base = load(dx + c, mask);
    store(dx + c, _mm512_mask3_fmadd_ps(load(dy + c, mask), s, base, kept), mask);
  });
}

COTUNE_AVX512_END

}  // namespace

bool dropout_keeps(const DropoutSite& site, uint64_t example_key, int32_t position, int64_t feature) {
  const uint64_t key = row_key(site, example_key, position);
  const uint32_t first = mix_round((uint32_t(feature) * feature_factor) ^ uint32_t(key));
  return mix_round(first ^ uint32_t(key >> 32)) >= threshold_of(site);
}

void dropout_forward(DType dtype, const DropoutSite& site, const DropoutRows& rows, const void* x, int64_t x_stride,
                     void* y, int64_t y_stride) {
  const uint32_t threshold = threshold_of(site);
  const float scale = scale_of(site);
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
#pragma omp parallel for schedule(static) if (rows.rows * rows.features > parallel_elements)
    for (int64_t r = 0; r < rows.rows; ++r) {
      mask_row(row_key(site, rows.example_keys[r], rows.positions[r]), threshold, scale, rows.features,
               static_cast<const T*>(x) + r * x_stride, static_cast<T*>(y) + r * y_stride);
    }
  });
}

void dropout_backward_add(DType dtype, const DropoutSite& site, const DropoutRows& rows, const void* dy,
                          int64_t dy_stride, void* dx, int64_t dx_stride) {
  const uint32_t threshold = threshold_of(site);
  const float scale = scale_of(site);
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
#pragma omp parallel for schedule(static) if (rows.rows * rows.features > parallel_elements)
    for (int64_t r = 0; r < rows.rows; ++r) {
      add_masked_row(row_key(site, rows.example_keys[r], rows.positions[r]), threshold, scale, rows.features,
                     static_cast<const T*>(dy) + r * dy_stride, static_cast<T*>(dx) + r * dx_stride);
    }
  });
}

}  // namespace cotune::kernels
