/// How ranks that are processes and compute on GPUs send tensors to each other.
#pragma once

#include <span>
#include <string>

#include "comm/communicator.h"
#include "device/compute_device.h"

namespace cotune {

/// A rank's device: of its host, equal for two ranks that share it.
struct RankHardware {
  std::string host;
  std::string device;  ///< empty where it cannot be in a group of devices
};

/// `device` of RankHardware; empty of a CPU.
std::string hardware_of(const ComputeDevice& device);

struct GpuMessages {
  bool between_devices = false;
  std::string text;  ///< `by NCCL 2.28.9`, or `by way of the hosts: ` and why; empty of CPUs
};

/// From device to device where every rank has one of its own, unless COTUNE_GPU_MESSAGES is `host`. device: the first rank's; ranks:
/// of all. Throws UserError where the variable is something else than `host` or `device`, or `device` and that cannot be.
GpuMessages choose_gpu_messages(const ComputeDevice& device, std::span<const RankHardware> ranks);

/// Groups like these, in which tensors go from device to device. device: this rank's.
NewGroup between_devices(NewGroup groups, const ComputeDevice& device);

}  // namespace cotune
