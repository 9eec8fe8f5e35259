/// A profile without a device: what its data sheet says of the canonical shapes.
#pragma once

#include <string>

#include "model/config/model_config.h"
#include "plan/shapes/cluster.h"
#include "schedule/profile.h"

namespace cotune {

/// The fingerprint's `kernels` of such a profile.
inline constexpr const char* roofline_kernels = "roofline";

/// Of every canonical shape (schedule/profile_grid.h), and of others of 2,048 and 8,192 tokens in one microbatch, the operators' roofline
/// times (operator_seconds of stage_cost.h), mean over the calls of a round, on one rank; `round` is the optimizer steps. Each
/// counts as one measurement without spread; the fingerprint has the device's name. Throws UserError where the device has no rate
/// for the dtype.
Profile roofline_profile(const ModelConfig& model, const DeviceSpec& device, const std::string& dtype);

}  // namespace cotune
