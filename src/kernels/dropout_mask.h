/// The mask of kernels/dropout.h for sixteen features at a time, for the kernels that apply it.
#pragma once

#include <cmath>

#include "base/random.h"
#include "kernels/dropout.h"
#include "kernels/vectors_avx512.h"

namespace cotune::kernels {
namespace {

constexpr uint32_t feature_factor = 0x9E3779B1u;
constexpr uint32_t mix_factor1 = 0x85EBCA6Bu;
constexpr uint32_t mix_factor2 = 0xC2B2AE35u;

inline uint64_t row_key(const DropoutSite& site, uint64_t example_key, int32_t position) {
  return mix_key(mix_key(site.key, example_key), uint64_t(int64_t(position)));
}

inline uint32_t threshold_of(const DropoutSite& site) {
  COTUNE_CHECK(site.probability >= 0 && site.probability < 1, "dropout probability {}", site.probability);
  return uint32_t(std::floor(double(site.probability) * 4294967296.0));
}

inline float scale_of(const DropoutSite& site) {
  return float(1.0 / (1.0 - double(site.probability)));
}

COTUNE_AVX512_BEGIN

inline __m512i mix_round(__m512i x) {
  x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
  x = _mm512_mullo_epi32(x, _mm512_set1_epi32(int(mix_factor1)));
  x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 13));
  x = _mm512_mullo_epi32(x, _mm512_set1_epi32(int(mix_factor2)));
  return _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
}

/// Calls body(offset, lanes, kept lanes) for each sixteen of a row's features from first_feature on.
template <typename Body>
inline void for_kept(uint64_t key, uint32_t threshold, int64_t first_feature, int64_t features, Body body) {
  const __m512i low = _mm512_set1_epi32(int(uint32_t(key)));
  const __m512i high = _mm512_set1_epi32(int(uint32_t(key >> 32)));
  const __m512i limit = _mm512_set1_epi32(int(threshold));
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  for_lanes(features, [&](int64_t c, __mmask16 mask) {
    const __m512i feature = _mm512_add_epi32(lanes, _mm512_set1_epi32(int(first_feature + c)));
    __m512i h = _mm512_mullo_epi32(feature, _mm512_set1_epi32(int(feature_factor)));
    h = mix_round(_mm512_xor_si512(mix_round(_mm512_xor_si512(h, low)), high));
    body(c, mask, _mm512_cmpge_epu32_mask(h, limit));
  });
}

COTUNE_AVX512_END

}  // namespace
}  // namespace cotune::kernels
