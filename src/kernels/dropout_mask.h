/// The mask of kernels/dropout.h for sixteen features at a time, for the kernels that apply it.
#pragma once

#include <cmath>

#include "base/random.h"
#include "kernels/dropout.h"
#include "kernels/vectors.h"

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

COTUNE_VECTORS_BEGIN

inline Words mix_round(Words x) {
  x = x ^ (x >> 16);
  x = x * splat_word(mix_factor1);
  x = x ^ (x >> 13);
  x = x * splat_word(mix_factor2);
  return x ^ (x >> 16);
}

/// Calls body(offset, lanes, kept lanes) for each sixteen of a row's features from first_feature on.
template <typename Body>
inline void for_kept(uint64_t key, uint32_t threshold, int64_t first_feature, int64_t features, Body body) {
  const Words low = splat_word(uint32_t(key));
  const Words high = splat_word(uint32_t(key >> 32));
  const Words limit = splat_word(threshold);
  const Words numbers = lane_numbers();
  for_lanes(features, [&](int64_t c, auto lanes) {
    const Words feature = numbers + splat_word(uint32_t(first_feature + c));
    Words h = feature * splat_word(feature_factor);
    h = mix_round(mix_round(h ^ low) ^ high);
    body(c, lanes, at_least(h, limit));
  });
}

COTUNE_VECTORS_END

}  // namespace
}  // namespace cotune::kernels
