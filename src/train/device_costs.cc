#include "train/device_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace cotune {
namespace {

/// Letters and digits alone, in capitals.
std::string plain(const std::string& text) {
  std::string result;
  for (const unsigned char c : text) {
    if (std::isalnum(c) != 0) result += static_cast<char>(std::toupper(c));
  }
  return result;
}

/// The preset whose name, up to its memory ("A100" of A100-40), stands in the GPU's, with the nearest memory; "": none.
std::string preset_of(const ComputeDevice& device) {
  const int64_t bytes = device.memory().total_bytes;
  const auto distance = [&](const std::string& name) { return std::abs(device_preset(name).memory_bytes - bytes); };
  std::string best;
  for (const std::string& name : device_preset_names()) {
    const bool is_named = plain(device.name).find(plain(name.substr(0, name.find('-')))) != std::string::npos;
    if (is_named && (best.empty() || distance(name) < distance(best))) best = name;
  }
  return best;
}

}  // namespace

DeviceCosts roofline_costs(at::ScalarType compute, const ComputeDevice& device, int64_t ranks) {
  DeviceCosts costs;
  std::string preset = device.is_cpu() ? "cpu" : preset_of(device);
  std::string without;
  if (preset.empty()) {
    preset = "A100-40";
    without = fmt::format(", for want of one for {}", device.name);
  }
  costs.machine.device = device_preset(preset);
  // There are no rates for float64, which is for tests: its products take as float32's.
  costs.machine.dtype = compute == at::kBFloat16 ? "bfloat16" : "float32";
  const auto share = static_cast<double>(ranks);
  for (auto& [dtype, rate] : costs.machine.device.flops) rate /= share;
  costs.machine.device.memory_bandwidth /= share;
  costs.source = fmt::format("the roofline of preset {}{}{}", preset, without, ranks > 1 ? fmt::format(", which {} ranks share", ranks) : "");
  return costs;
}

DeviceCosts measured_costs(at::ScalarType compute, const ComputeDevice& device, const MeasuredTimes& measured,
                           const std::string& file, int64_t ranks) {
  DeviceCosts costs = roofline_costs(compute, device, ranks);
  costs.machine.measured = &measured;
  costs.source = file;
  return costs;
}

}  // namespace cotune
