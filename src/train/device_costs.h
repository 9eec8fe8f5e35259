#pragma once

#include <c10/core/ScalarType.h>

#include <string>

#include "device/compute_device.h"
#include "plan/cost/operator_seconds.h"

namespace cotune {

/// What a run's rounds are priced by before they run.
struct DeviceCosts {
  StageMachine machine;
  std::string source;  ///< in words: "profile.json", "the roofline of preset cpu"
};

/// The roofline of the device at hand: preset `cpu`, or the preset that a GPU's name and memory fit best. ranks: that share its rates
/// evenly, as threads and processes do that compute on one machine's cores.
DeviceCosts roofline_costs(at::ScalarType compute, const ComputeDevice& device, int64_t ranks = 1);

/// The times of a profile of this device, measured by as many ranks at once; `measured` must outlive the result.
DeviceCosts measured_costs(at::ScalarType compute, const ComputeDevice& device, const MeasuredTimes& measured,
                           const std::string& file, int64_t ranks = 1);

}  // namespace cotune
