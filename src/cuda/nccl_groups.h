#pragma once

#include "device/device_group.h"

namespace cotune {

/// Groups of NVIDIA GPUs, through NCCL; nullptr where the process has none (nccl_library.h). Each group has a stream of its own. Lives as
/// long as the process.
DeviceGroups* nccl_groups();

}  // namespace cotune
