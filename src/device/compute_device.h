#pragma once

#include <c10/core/Device.h>

#include <string>

#include "device/plugin_loader.h"

namespace cotune {

/// The device that a command computes on.
struct ComputeDevice {
  at::Device device = at::kCPU;
  DevicePlugin* plugin = nullptr;  ///< of a device other than the CPU
  std::string name = "cpu";        ///< what it calls itself
  std::string notice;              ///< why a device that is there is not used; usually empty

  bool is_cpu() const { return plugin == nullptr; }
  /// There is none: nothing is computed, and tensors on the meta device have shapes alone. is_cpu() is true.
  bool is_emulated() const { return device.is_meta(); }
  /// Only where is_cpu() is false.
  DeviceMemory memory() const { return plugin->memory(device.index()); }
};

/// wish: `cpu`, `cuda`, or `auto`, which takes the first CUDA device (of those that CUDA_VISIBLE_DEVICES leaves) and
/// falls back to the CPU without one; or `emulated:FILE`, where the file is the caller's to read. The device chosen is activated. place: of the wish,
/// for the message. Before the first tensor. local_rank: of this process among those of its machine, which share its CUDA devices in turn. Throws
/// UserError where cuda is wished for and cannot be had; the message says what is missing.
ComputeDevice choose_device(const std::string& wish, const std::string& place, const PluginSearch& search = {},
                            int local_rank = 0);

}  // namespace cotune
