#pragma once

#include "device/compute_device.h"

namespace cotune::testing {

/// A device of host memory that operators alone may touch: its tensors' pages can be read and written only while one of
/// torch's operators, computed by the CPU, works on them. What reads a device's memory on the host ends by a signal, and an
/// operator that is given tensors of the CPU beside tensors of this device throws, as on a GPU. `COTUNE_TEST_DEVICE=guarded`.
const ComputeDevice& guarded_device();

}  // namespace cotune::testing
