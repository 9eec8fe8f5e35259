#include "kernels/dropout.h"

#include "kernels/dropout_mask.h"

namespace cotune::kernels {
namespace {

uint32_t mix_round(uint32_t x) {
  x ^= x >> 16;
  x *= mix_factor1;
  x ^= x >> 13;
  x *= mix_factor2;
  return x ^ (x >> 16);
}

}  // namespace

bool dropout_keeps(const DropoutSite& site, uint64_t example_key, int32_t position, int64_t feature) {
  const uint64_t key = row_key(site, example_key, position);
  const uint32_t first = mix_round((uint32_t(site.first_feature + feature) * feature_factor) ^ uint32_t(key));
  return mix_round(first ^ uint32_t(key >> 32)) >= threshold_of(site);
}

}  // namespace cotune::kernels
