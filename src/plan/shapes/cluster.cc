#include "plan/shapes/cluster.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "base/diagnostics.h"
#include "base/error.h"

namespace cotune {
namespace {

constexpr double tera = 1e12, giga = 1e9;
constexpr int64_t gib = int64_t{1} << 30;

struct Preset {
  const char* name;
  int64_t memory_gib;
  double bfloat16, float32;  ///< TFLOP/s, dense
  double bandwidth;          ///< GB/s
  double compute_efficiency = 0.55;
};

// From the vendor's data sheets (SXM versions of A100, A800, H100 and H200). `cpu` is two cores with AVX-512 BF16 and AMX
// as measured here with our kernels, so that its efficiency is one.
constexpr Preset presets[] = {
    {"A40", 48, 149.7, 37.4, 696},     {"A100-40", 40, 312, 19.5, 1555},  {"A100-80", 80, 312, 19.5, 2039},
    {"A800-80", 80, 312, 19.5, 2039},  {"A6000", 48, 154.8, 38.7, 768},   {"RTX4090", 24, 165.2, 82.6, 1008},
    {"H100", 80, 989, 67, 3350},       {"H200", 141, 989, 67, 4800},      {"cpu", 16, 0.85, 0.46, 20, 1.0},
};

struct LinkPreset {
  const char* name;
  double gigabytes;     ///< per second and device
  double microseconds;
};

// NVLink by its total of both directions, as vendors name it: each direction has half.
constexpr LinkPreset links[] = {
    {"nvlink-900", 450, 3},        {"nvlink-600", 300, 3},        {"nvlink-400", 200, 3},     {"nvlink-112", 56, 3},
    {"pcie4", 25, 8},              {"infiniband-400", 50, 5},     {"infiniband-200", 25, 5},  {"infiniband-100", 12.5, 5},
    {"ethernet-10", 1.25, 30},     {"ethernet-1", 0.125, 50},
};

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

template <typename Table>
std::vector<std::string> names_of(const Table& table) {
  std::vector<std::string> names;
  for (const auto& entry : table) names.emplace_back(entry.name);
  return names;
}

template <typename Table>
const auto& entry_of(const Table& table, std::string_view name, std::string_view kind) {
  for (const auto& entry : table) {
    if (lower(name) == lower(entry.name)) return entry;
  }
  const std::string near = nearest_name(std::string(name.substr(0, 60)), names_of(table));
  throw_user_error("{} '{}' is not known{}; accepted: {}", kind, name.substr(0, 60),
                   near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near), fmt::join(names_of(table), ", "));
}

}  // namespace

int64_t ClusterSpec::device_count() const {
  int64_t count = 0;
  for (const NodeGroup& group : nodes) count += group.count * group.devices;
  return count;
}

std::optional<double> LinkSpec::measured_seconds(CollectiveKind kind, int64_t ranks, double bytes) const {
  const auto found = measured.find({kind, ranks});
  if (found == measured.end()) return std::nullopt;
  return found->second.seconds(bytes);
}

LinkSpec LinkSpec::slowed_by(double factor) const {
  LinkSpec slow{.bandwidth = bandwidth / factor, .latency = latency * factor, .measured = measured};
  for (auto& [key, time] : slow.measured) time = {time.latency_s * factor, time.seconds_per_byte * factor};
  return slow;
}

const LinkSpec& ClusterSpec::link_of(const NodeGroup& group, int64_t devices) const {
  return devices <= group.devices ? group.link : network;
}

DeviceSpec device_preset(std::string_view name) {
  const Preset& preset = entry_of(presets, name, "device");
  DeviceSpec device{.name = preset.name,
                    .memory_bytes = preset.memory_gib * gib,
                    .flops = {{"bfloat16", preset.bfloat16 * tera}, {"float32", preset.float32 * tera}},
                    .memory_bandwidth = preset.bandwidth * giga,
                    .compute_efficiency = preset.compute_efficiency};
  return device;
}

std::vector<std::string> device_preset_names() {
  return names_of(presets);
}

LinkSpec link_preset(std::string_view name) {
  const LinkPreset& preset = entry_of(links, name, "link");
  return {.bandwidth = preset.gigabytes * giga, .latency = preset.microseconds * 1e-6};
}

std::vector<std::string> link_preset_names() {
  return names_of(links);
}

}  // namespace cotune
