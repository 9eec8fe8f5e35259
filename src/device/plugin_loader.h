#pragma once

#include <filesystem>
#include <string>

#include "device/plugin.h"

namespace cotune {

/// Where the two libraries of a CUDA device are looked for.
struct PluginSearch {
  std::string driver = "libcuda.so.1";  ///< NVIDIA's driver, by the system's search
  std::filesystem::path plugin;         ///< empty: libcotune_cuda.so beside the program
};

struct OpenedPlugin {
  DevicePlugin* plugin = nullptr;  ///< with at least one device; nullptr: see problem. Never closed
  bool has_device = false;         ///< the driver is there and names a device, whether it can be used or not
  std::string problem;             ///< what is missing, as half a sentence
};

/// Opens the CUDA plugin if it can be of use: asks the driver for devices first, so that nothing large is loaded where
/// there is none. Must come before anything else asks torch for CUDA (torch remembers the first answer).
OpenedPlugin open_cuda_plugin(const PluginSearch& search = {});

}  // namespace cotune
