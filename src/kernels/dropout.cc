#include "kernels/dropout.h"

#include <vector>

#include "kernels/dropout_mask.h"

namespace cotune::kernels {
namespace {

constexpr int64_t parallel_elements = 1 << 14;

uint32_t mix_round(uint32_t x) {
  x ^= x >> 16;
  x *= mix_factor1;
  x ^= x >> 13;
  x *= mix_factor2;
  return x ^ (x >> 16);
}

COTUNE_AVX512_BEGIN

template <typename T>
void mask_row(uint64_t key, uint32_t threshold, float scale, int64_t first_feature, int64_t features, const T* x, T* y) {
  const __m512 s = _mm512_set1_ps(scale);
  for_kept(key, threshold, first_feature, features, [&](int64_t c, __mmask16 mask, __mmask16 kept) {
    store(y + c, _mm512_maskz_mul_ps(kept, load(x + c, mask), s), mask);
  });
}

COTUNE_AVX512_END

}  // namespace

bool dropout_keeps(const DropoutSite& site, uint64_t example_key, int32_t position, int64_t feature) {
  const uint64_t key = row_key(site, example_key, position);
  const uint32_t first = mix_round((uint32_t(site.first_feature + feature) * feature_factor) ^ uint32_t(key));
  return mix_round(first ^ uint32_t(key >> 32)) >= threshold_of(site);
}

void dropout_forward(DType dtype, std::span<const DropoutGroup> groups, const DropoutRows& rows, const void* x,
                     int64_t x_stride, void* y, int64_t y_stride) {
  std::vector<int64_t> begins{0};  // of each group among all rows
  std::vector<uint32_t> thresholds;
  for (const DropoutGroup& group : groups) {
    begins.push_back(begins.back() + group.rows.count());
    thresholds.push_back(threshold_of(group.site));
  }
  const int64_t count = begins.back();
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
#pragma omp parallel for schedule(static) if (count * rows.features > parallel_elements)
    for (int64_t i = 0; i < count; ++i) {
      const auto g = size_t(std::upper_bound(begins.begin(), begins.end(), i) - begins.begin() - 1);
      const DropoutGroup& group = groups[g];
      const int64_t local = i - begins[g], row = group.rows.begin + local;
      mask_row(row_key(group.site, rows.example_keys[row], rows.positions[row]), thresholds[g], scale_of(group.site),
               group.site.first_feature, rows.features, static_cast<const T*>(x) + row * x_stride,
               static_cast<T*>(y) + (group.target + local) * y_stride);
    }
  });
}

}  // namespace cotune::kernels
