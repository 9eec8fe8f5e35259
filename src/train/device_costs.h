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

/// The roofline of the device at hand: preset `cpu`, or the preset that a GPU's name and memory fit best.
DeviceCosts roofline_costs(at::ScalarType compute, const ComputeDevice& device);

/// The times of a profile of this device; `measured` must outlive the result.
DeviceCosts measured_costs(at::ScalarType compute, const ComputeDevice& device, const MeasuredTimes& measured,
                           const std::string& file);

}  // namespace cotune
