#pragma once

#include <ATen/core/Tensor.h>

#include "device/compute_device.h"
#include "schedule/profile.h"

namespace cotune {

/// What a profile measured by this process would hold for: device, kernels, libraries, model, dtype and threads.
ProfileFingerprint fingerprint_here(const ModelConfig& model, at::ScalarType compute, const ComputeDevice& device);

}  // namespace cotune
