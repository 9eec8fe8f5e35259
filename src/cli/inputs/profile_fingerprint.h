#pragma once

#include <ATen/core/Tensor.h>

#include "device/compute_device.h"
#include "schedule/profile.h"

namespace cotune {

/// The ranks of a run that compute on this machine at the same time.
struct RanksHere {
  int64_t ranks = 1;
  int64_t threads = 0;  ///< of each; 0: as many as this process has
};

/// What a profile measured by this process would hold for: device, kernels, libraries, model, dtype, threads and ranks.
ProfileFingerprint fingerprint_here(const ModelConfig& model, at::ScalarType compute, const ComputeDevice& device,
                                    const RanksHere& here = {});

}  // namespace cotune
