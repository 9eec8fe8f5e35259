#include "kernels/dropout.h"

#include <vector>

#include "kernels/dropout_mask.h"

namespace cotune::kernels::COTUNE_VECTORS {
namespace {

constexpr int64_t parallel_elements = 1 << 14;

COTUNE_VECTORS_BEGIN

template <typename T>
void mask_row(uint64_t key, uint32_t threshold, float scale, int64_t first_feature, int64_t features, const T* x, T* y) {
  const Vector s = splat(scale);
  for_kept(key, threshold, first_feature, features, [&](int64_t c, auto lanes, Lanes kept) {
    store(y + c, keep(kept, load(x + c, lanes) * s), lanes);
  });
}

COTUNE_VECTORS_END

}  // namespace

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

}  // namespace cotune::kernels::COTUNE_VECTORS
