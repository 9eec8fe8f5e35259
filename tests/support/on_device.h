/// Tensors between the CPU, where tests draw values and compute references, and the device under test.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "device/gpu_kernels.h"
#include "ops/backend.h"
#include "support/test_device.h"

namespace cotune::testing {

inline at::Tensor on_device(const at::Tensor& tensor) { return tensor.to(test_device()); }
/// On the CPU, the tensor itself where it is there.
inline at::Tensor on_host(const at::Tensor& tensor) { return tensor.cpu(); }
/// On the CPU in f64, exactly: what references are computed from.
inline at::Tensor exact(const at::Tensor& tensor) { return tensor.to(at::kCPU, at::kDouble); }

/// Equal bits, wherever the two are.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) { return at::equal(on_host(a), on_host(b)); }

/// Whether a row of a frozen product has the same bits among any others: not on a GPU, where the product's kernel is chosen by
/// shape (docs/gpu.md).
inline bool frozen_products_keep_bits() { return test_device().is_cpu(); }

/// Whether grouped low-rank operations are kernels of ours now, which give a job the same bits among any others.
inline bool low_rank_kernels_run(at::ScalarType dtype) {
  if (test_device().is_cpu()) return kernel_isa(dtype, at::kCPU) != kernels::Isa::none;
  return dtype == at::kBFloat16 && active_gpu_kernels() != nullptr;
}

}  // namespace cotune::testing

/// For tests of what only the CPU has. The reason follows: SKIP_ON_A_DEVICE() << "counts the host's memory".
#define SKIP_ON_A_DEVICE() \
  if (!::cotune::testing::test_device().is_cpu()) GTEST_SKIP()
