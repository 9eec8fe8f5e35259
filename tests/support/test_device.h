#pragma once

#include "device/compute_device.h"

namespace cotune::testing {

/// Where tests compute: the CPU, or what COTUNE_TEST_DEVICE names: `cuda`, or `guarded` (guarded_device.h). A device that is
/// named and cannot be had ends the test program: a run for that device must not pass without it.
const ComputeDevice& test_compute_device();
inline at::Device test_device() { return test_compute_device().device; }

}  // namespace cotune::testing
