#include "plan/shapes/cluster_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "jobs/identifier.h"
#include "jobs/option_layer.h"
#include "jobs/option_value.h"
#include "jobs/yaml_document.h"

namespace cotune {
namespace {

using Entry = SectionReader::Entry;

struct Unit {
  std::string_view name;
  double factor;
};

constexpr double kib = 1024;
constexpr Unit memory_units[] = {{"B", 1},           {"MiB", kib * kib}, {"GiB", kib * kib * kib}, {"TiB", kib * kib * kib * kib},
                                 {"MB", 1e6},        {"GB", 1e9},              {"TB", 1e12}};
constexpr Unit bandwidth_units[] = {{"B/s", 1}, {"MB/s", 1e6}, {"GB/s", 1e9}, {"TB/s", 1e12}, {"Mbit/s", 125e3}, {"Gbit/s", 125e6}};
constexpr Unit rate_units[] = {{"FLOP/s", 1}, {"GFLOP/s", 1e9}, {"TFLOP/s", 1e12}, {"PFLOP/s", 1e15}};
constexpr Unit time_units[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};

/// What a quantity may be, in its base unit and in words: times and costs of whatever is planned stay numbers then.
struct Range {
  double least, most;
  std::string_view words, example;
};
constexpr Range memory_range = {1, 1e18, "1B to 1000000TB", "40GiB"};
constexpr Range bandwidth_range = {1, 1e18, "1B/s to 1000000TB/s", "300GB/s"};
constexpr Range rate_range = {1e6, 1e24, "0.001GFLOP/s to 1000000000PFLOP/s", "312TFLOP/s"};
constexpr Range time_range = {0, 3600, "0s to 3600s", "4us"};

/// "300GB/s" or "300 GB/s"; nothing when it is no positive finite number with one of the units.
template <size_t n>
std::optional<double> parse_quantity(std::string_view text, const Unit (&units)[n]) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || !std::isfinite(number) || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  if (text.starts_with(' ')) text.remove_prefix(1);
  for (const Unit& unit : units) {
    if (text == unit.name && std::isfinite(number * unit.factor)) return number * unit.factor;
  }
  return std::nullopt;
}

std::string found(const Entry& entry) {
  if (entry.value.IsNull()) return "nothing";
  if (entry.value.IsSequence()) return entry.value.size() == 0 ? "an empty list" : "a list";
  if (entry.value.IsMap()) return "a map";
  return entry.value.Scalar().empty() ? "an empty text" : shown(entry.value.Scalar());
}

class ClusterReader {
 public:
  ClusterReader(const std::string& file, MistakeList& mistakes) : sections_(file, mistakes), mistakes_(mistakes) {}

  ClusterSpec read(const YAML::Node& document) {
    ClusterSpec cluster;
    bool has_version = false, has_network = false;
    int nodes_line = 0;
    for (const Entry& entry : sections_.entries(document, "", 1)) {
      if (entry.key == "cotune_cluster") {
        has_version = true;
        if (!entry.value.IsScalar() || entry.value.Scalar() != "1") {
          refuse(entry, "the version of the file's format, which is 1");
        }
      } else if (entry.key == "nodes") {
        nodes_line = entry.line;
        read_nodes(entry, cluster.nodes);
      } else if (entry.key == "network") {
        has_network = true;
        cluster.network = read_link(entry);
      } else {
        unknown(entry, {"cotune_cluster", "nodes", "network"});
      }
    }
    if (!has_version) missing(0, "cotune_cluster", "`cotune_cluster: 1` is missing: the version of the file's format");
    if (nodes_line == 0) missing(0, "nodes", "is missing: a list of nodes");
    int64_t count = 0;
    for (const NodeGroup& group : cluster.nodes) count += group.count;
    if (count > 1 && !has_network) {
      missing(nodes_line, "network", fmt::format("is missing: the link between the {} nodes; accepted: {}", count, link_text()));
    }
    return cluster;
  }

 private:
  static std::string link_text() {
    return fmt::format("one of {}, or a map of bandwidth and latency", fmt::join(link_preset_names(), ", "));
  }

  void missing(int line, const std::string& field, const std::string& message) {
    mistakes_.add(sections_.file(), line, field, message);
  }

  void refuse(const Entry& entry, const std::string& accepted) {
    mistakes_.add(sections_.file(), entry.line, entry.field, fmt::format("must be {}, got {}", accepted, found(entry)));
  }

  void unknown(const Entry& entry, const std::vector<std::string>& accepted) {
    mistakes_.add(sections_.file(), entry.line, entry.field, unknown_key_message(entry.key, accepted));
  }

  void read_nodes(const Entry& entry, std::vector<NodeGroup>& nodes) {
    constexpr size_t most_groups = 1000;
    if (!entry.value.IsSequence() || entry.value.size() == 0 || entry.value.size() > most_groups) {
      return refuse(entry, fmt::format("a list of 1 to {} kinds of nodes", most_groups));
    }
    std::set<std::string> names;
    for (const YAML::Node& node : entry.value) {
      const std::string field = fmt::format("nodes[{}]", nodes.size());
      const int line = std::max(line_of(node), entry.line);
      nodes.push_back(read_group(node, nodes.size(), field, line));
      if (!names.insert(nodes.back().name).second) {
        missing(line, field + ".name", fmt::format("`{}` is also the name of other nodes", nodes.back().name));
      }
    }
  }

  NodeGroup read_group(const YAML::Node& node, size_t index, const std::string& field, int line) {
    NodeGroup group{.name = fmt::format("nodes-{}", index)};
    bool has_device = false, has_link = false;
    for (const Entry& entry : sections_.entries(node, field, line)) {
      if (entry.key == "name") {
        if (!entry.value.IsScalar() || !is_identifier(entry.value.Scalar())) {
          refuse(entry, "1 to 100 letters, digits, `.`, `_` and `-`, not starting with `.`");
        } else {
          group.name = entry.value.Scalar();
        }
      } else if (entry.key == "count") {
        group.count = read_count(entry, 100'000);
      } else if (entry.key == "devices") {
        group.devices = read_count(entry, 1024);
      } else if (entry.key == "device") {
        has_device = true;
        group.device = read_device(entry);
      } else if (entry.key == "link") {
        has_link = true;
        group.link = read_link(entry);
      } else {
        unknown(entry, {"name", "count", "devices", "device", "link"});
      }
    }
    if (!has_device) {
      missing(line, field + ".device", fmt::format("is missing: one of {}, or a map", fmt::join(device_preset_names(), ", ")));
    }
    if (group.devices > 1 && !has_link) {
      missing(line, field + ".link",
              fmt::format("is missing: the link between the {} devices; accepted: {}", group.devices, link_text()));
    }
    return group;
  }

  int64_t read_count(const Entry& entry, int64_t most) {
    int64_t number = 0;
    const std::string text = entry.value.IsScalar() ? entry.value.Scalar() : "";
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc{} && end == text.data() + text.size() && number >= 1 && number <= most) return number;
    refuse(entry, fmt::format("a whole number from 1 to {}", most));
    return 1;
  }

  double read_number(const Entry& entry, double low, double high, const std::string& accepted) {
    double number = 0;
    const std::string text = entry.value.IsScalar() ? entry.value.Scalar() : "";
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool good = error == std::errc{} && end == text.data() + text.size() && std::isfinite(number) &&
                      number >= low && number <= high;
    if (!good) refuse(entry, accepted);
    return good ? number : high;
  }

  template <size_t n>
  double read_quantity(const Entry& entry, const Unit (&units)[n], const Range& range) {
    const auto number = entry.value.IsScalar() ? parse_quantity(entry.value.Scalar(), units) : std::nullopt;
    if (number && *number >= range.least && *number <= range.most) return *number;
    std::vector<std::string_view> names;
    for (const Unit& unit : units) names.push_back(unit.name);
    refuse(entry, fmt::format("a number with one of {}, from {}, such as {}", fmt::join(names, ", "), range.words, range.example));
    return std::max(1.0, range.least);
  }

  template <typename Value>
  Value from_preset(const Entry& entry, Value (*preset)(std::string_view)) {
    if (!entry.value.IsScalar()) {
      refuse(entry, "the name of a preset, or a map");
      return {};
    }
    try {
      return preset(entry.value.Scalar());
    } catch (const UserError& error) {
      mistakes_.add(sections_.file(), entry.line, entry.field, error.what());
      return {};
    }
  }

  DeviceSpec read_device(const Entry& entry) {
    if (!entry.value.IsMap()) return from_preset(entry, device_preset);
    DeviceSpec device;
    std::set<std::string> given;
    const std::vector<Entry> entries = sections_.entries(entry.value, entry.field, entry.line);
    for (const Entry& child : entries) {
      if (child.key == "preset") device = from_preset(child, device_preset);
    }
    for (const Entry& child : entries) {
      given.insert(child.key);
      read_device_value(child, device);
    }
    if (given.contains("preset")) return device;
    for (const char* needed : {"memory", "memory_bandwidth"}) {
      if (!given.contains(needed)) missing(entry.line, fmt::format("{}.{}", entry.field, needed), "is missing, and there is no `preset`");
    }
    if (!given.contains("bfloat16") && !given.contains("float32")) {
      missing(entry.line, entry.field + ".bfloat16", "is missing, and so are `float32` and `preset`");
    }
    return device;
  }

  void read_device_value(const Entry& entry, DeviceSpec& device) {
    const auto share = [&](double& value) { value = read_number(entry, 1e-6, 1, "a number from 0.000001 to 1"); };
    if (entry.key == "preset") return;
    if (entry.key == "name") {
      device.name = entry.value.IsScalar() ? entry.value.Scalar() : "";
      if (!is_identifier(device.name)) refuse(entry, "1 to 100 letters, digits, `.`, `_` and `-`");
    } else if (entry.key == "memory") {
      device.memory_bytes = static_cast<int64_t>(read_quantity(entry, memory_units, memory_range));
    } else if (entry.key == "memory_bandwidth") {
      device.memory_bandwidth = read_quantity(entry, bandwidth_units, bandwidth_range);
    } else if (entry.key == "bfloat16" || entry.key == "float32") {
      device.flops[entry.key] = read_quantity(entry, rate_units, rate_range);
    } else if (entry.key == "compute_efficiency") {
      share(device.compute_efficiency);
    } else if (entry.key == "memory_efficiency") {
      share(device.memory_efficiency);
    } else if (entry.key == "usable_memory") {
      share(device.usable_memory);
    } else if (entry.key == "launch") {
      device.launch_seconds = read_quantity(entry, time_units, time_range);
    } else if (entry.key == "cost_per_hour") {
      device.cost_per_hour = read_number(entry, 0, 1e9, "a number from 0 to 1000000000");
    } else if (entry.key == "communication_share") {
      device.communication_share = read_number(entry, 0, 0.99, "a number from 0 to 0.99");
    } else {
      unknown(entry, {"preset", "name", "memory", "memory_bandwidth", "bfloat16", "float32", "compute_efficiency",
                      "memory_efficiency", "usable_memory", "launch", "cost_per_hour", "communication_share"});
    }
  }

  LinkSpec read_link(const Entry& entry) {
    if (!entry.value.IsMap()) return from_preset(entry, link_preset);
    LinkSpec link;
    bool has_bandwidth = false;
    for (const Entry& child : sections_.entries(entry.value, entry.field, entry.line)) {
      if (child.key == "bandwidth") {
        has_bandwidth = true;
        link.bandwidth = read_quantity(child, bandwidth_units, bandwidth_range);
      } else if (child.key == "latency") {
        link.latency = read_quantity(child, time_units, time_range);
      } else {
        unknown(child, {"bandwidth", "latency"});
      }
    }
    if (!has_bandwidth) missing(entry.line, entry.field + ".bandwidth", "is missing: such as 300GB/s");
    return link;
  }

  SectionReader sections_;
  MistakeList& mistakes_;
};

std::string link_yaml(const LinkSpec& link) {
  return fmt::format("{{bandwidth: {}B/s, latency: {}s}}", link.bandwidth, link.latency);
}

}  // namespace

ClusterSpec parse_cluster_file(std::string_view text, const std::string& file_name) {
  MistakeList mistakes;
  const ClusterSpec cluster = ClusterReader(file_name, mistakes).read(load_yaml_document(text, file_name));
  mistakes.throw_if_any();
  return cluster;
}

ClusterSpec read_cluster_file(const std::filesystem::path& path) {
  return parse_cluster_file(read_file(path), path.string());
}

void check_like_nodes(const ClusterSpec& cluster, const std::string& file_name, const std::string& what) {
  if (cluster.nodes.size() == 1) return;
  std::vector<std::string> names;
  for (const NodeGroup& group : cluster.nodes) names.push_back(group.name);
  throw_user_error("{}: nodes: must be one group of like nodes, which {} takes, got {} groups: {}", file_name, what, names.size(),
                   fmt::join(names, ", "));
}

void check_rates(const ClusterSpec& cluster, const std::string& file_name, const std::string& dtype, const std::string& asked_by) {
  for (size_t i = 0; i < cluster.nodes.size(); ++i) {
    const std::map<std::string, double>& rates = cluster.nodes[i].device.flops;
    if (rates.contains(dtype)) continue;
    std::vector<std::string> known;
    for (const auto& [name, rate] : rates) known.push_back(name);
    throw_user_error("{}: nodes[{}].device.{}: is missing, and {} asks for {}; the device has a rate for {}", file_name, i, dtype, asked_by,
                     dtype, fmt::join(known, ", "));
  }
}

std::string to_yaml(const ClusterSpec& cluster) {
  std::string text = "cotune_cluster: 1\nnodes:\n";
  for (const NodeGroup& group : cluster.nodes) {
    const DeviceSpec& device = group.device;
    text += fmt::format("  - name: {}\n    count: {}\n    devices: {}\n    device:\n", quote_yaml(group.name), group.count,
                        group.devices);
    if (!device.name.empty()) text += fmt::format("      name: {}\n", quote_yaml(device.name));
    text += fmt::format("      memory: {}B\n      memory_bandwidth: {}B/s\n", device.memory_bytes,
                        device.memory_bandwidth);
    for (const auto& [dtype, rate] : device.flops) text += fmt::format("      {}: {}FLOP/s\n", dtype, rate);
    text += fmt::format("      compute_efficiency: {}\n      memory_efficiency: {}\n      usable_memory: {}\n      launch: {}s\n"
                        "      cost_per_hour: {}\n      communication_share: {}\n",
                        device.compute_efficiency, device.memory_efficiency, device.usable_memory,
                        device.launch_seconds, device.cost_per_hour, device.communication_share);
    if (group.link.bandwidth > 0) text += fmt::format("    link: {}\n", link_yaml(group.link));
  }
  if (cluster.network.bandwidth > 0) text += fmt::format("network: {}\n", link_yaml(cluster.network));
  return text;
}

}  // namespace cotune
