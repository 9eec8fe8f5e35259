#pragma once

#include <c10/core/Device.h>

namespace cotune::testing {

/// Where the engine's tests compute: the CPU, or what COTUNE_TEST_DEVICE names (`cuda`). A device that is named and
/// cannot be had ends the test program: a run for that device must not pass without it.
at::Device test_device();

}  // namespace cotune::testing
