#pragma once

#include <ATen/core/Tensor.h>

#include "device/compute_device.h"
#include "schedule/profile.h"

namespace cotune {

/// As model.dtype, profiles and plans name it.
std::string dtype_name(at::ScalarType compute);

/// What a profile measured by this process would hold for: device, kernels, libraries, model, dtype and threads. ranks: of a
/// pipeline that divide the threads.
ProfileFingerprint fingerprint_here(const ModelConfig& model, at::ScalarType compute, const ComputeDevice& device,
                                    int64_t ranks = 1);

}  // namespace cotune
