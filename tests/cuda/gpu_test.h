#pragma once

#include <gtest/gtest.h>

#include "device/gpu_kernels.h"
#include "kernels/matrix.h"
#include "support/on_device.h"

namespace cotune::testing {

/// Tests of a GPU's kernels: skipped where COTUNE_TEST_DEVICE names none.
template <typename Parameter>
class GpuTest : public ::testing::TestWithParam<Parameter> {
 protected:
  void SetUp() override {
    if (test_device().is_cpu()) GTEST_SKIP() << "kernels of a GPU: COTUNE_TEST_DEVICE does not name one";
    ASSERT_NE(active_gpu_kernels(), nullptr) << "the plugin brings no kernels";
  }
};

/// Of the same bits wherever the two are; a NaN equals itself.
inline bool equal_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto bits = [](const at::Tensor& tensor) {
    const at::Tensor here = on_host(tensor).contiguous();
    if (here.element_size() == 8) return here.view(at::kLong);
    return here.view(here.element_size() == 2 ? at::kShort : at::kInt);
  };
  return at::equal(bits(a), bits(b));
}

/// ‖actual − expected‖ / ‖expected‖.
inline double norm_error(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.numel() == 0) return 0;
  return ((exact(actual) - expected).norm() / (expected.norm() + 1e-30)).item<double>();
}

inline at::Tensor rows_of(const at::Tensor& tensor, const kernels::RowRange& rows) { return tensor.narrow(0, rows.begin, rows.count()); }

}  // namespace cotune::testing
