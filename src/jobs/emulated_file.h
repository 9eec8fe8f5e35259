#pragma once

#include <string>
#include <string_view>

namespace cotune {

/// The one choice of run.device that has a file: `emulated:FILE`.
inline constexpr std::string_view emulated_device = "emulated";

/// FILE of `emulated:FILE`: a profile or a cluster file, whose times stand in for a device. "" of any other device.
std::string emulated_file(std::string_view device);

}  // namespace cotune
