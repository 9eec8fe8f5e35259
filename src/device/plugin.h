/// What the program asks of a device that it reaches through a plugin, a library opened at run time. The plugin brings
/// torch's kernels for its device into the process as well, and kernels of our own: from then on tensors can be there.
#pragma once

#include <torch/headeronly/version.h>

#include <cstdint>
#include <string>

#include "device/device_group.h"
#include "device/gpu_kernels.h"

namespace cotune {

/// Bytes of one device, as its caching allocator counts them.
struct DeviceMemory {
  int64_t allocated_bytes = 0;       ///< in tensors
  int64_t peak_allocated_bytes = 0;
  int64_t held_bytes = 0;            ///< taken from the device: in tensors, and kept for reuse
  int64_t peak_held_bytes = 0;
  int64_t free_bytes = 0;            ///< of the device, whoever holds the rest
  int64_t total_bytes = 0;
};

/// Devices are counted from 0. Every call may throw c10::Error where the device fails.
class DevicePlugin {
 public:
  /// Devices that can compute. 0 where a driver is there and none works: never throws.
  virtual int device_count() noexcept = 0;
  virtual std::string name(int index) = 0;
  /// Whether it multiplies bfloat16 natively.
  virtual bool has_bf16(int index) = 0;
  /// Makes it the device of this thread and sets torch's options to our rules: sums of products in f32.
  virtual void activate(int index) = 0;
  virtual DeviceMemory memory(int index) = 0;
  /// held_bytes will not exceed it: allocations beyond throw c10::OutOfMemoryError. 0: no limit.
  virtual void set_memory_limit(int index, int64_t bytes) = 0;
  virtual void reset_memory_peaks(int index) = 0;
  /// From now on what makes the host wait for the device throws c10::Error (tests).
  virtual void forbid_waiting(bool forbidden) = 0;
  /// Kernels of our own for the device; nullptr: there are none (of an NVIDIA GPU: below compute capability 8.0), and operators
  /// are torch's.
  virtual GpuKernels* kernels(int index) = 0;
  /// How ranks on such devices reach each other; nullptr: not without their hosts.
  virtual DeviceGroups* groups() = 0;
  /// Gives what is kept for reuse back to the device.
  virtual void release_unused_memory() = 0;

 protected:
  ~DevicePlugin() = default;  // a plugin lives as long as the process
};

/// Program and plugin must have been built from the same interface and libtorch: both hold this text.
#define COTUNE_PLUGIN_INTERFACE "cotune device interface 6, torch " TORCH_VERSION

/// The two functions that a plugin exports.
inline constexpr const char* plugin_interface_symbol = "cotune_plugin_interface";  ///< const char* (): its text
inline constexpr const char* plugin_symbol = "cotune_device_plugin";               ///< DevicePlugin* ()

}  // namespace cotune
