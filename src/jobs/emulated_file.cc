#include "jobs/emulated_file.h"

namespace cotune {

std::string emulated_file(std::string_view device) {
  if (!device.starts_with(emulated_device) || device.substr(emulated_device.size(), 1) != ":") return {};
  return std::string(device.substr(emulated_device.size() + 1));
}

}  // namespace cotune
