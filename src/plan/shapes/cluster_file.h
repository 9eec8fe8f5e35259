/// The cluster file:
///
///   cotune_cluster: 1
///   nodes:
///     - name: a100               # optional; in messages and plans
///       count: 2                 # nodes like this one; default 1
///       devices: 8               # of one node; default 1
///       device: A100-40          # a preset, or a map; with `preset` the map changes some of its values:
///       # device: {preset: A100-40, memory: 40GiB, memory_bandwidth: 1555GB/s, bfloat16: 312TFLOP/s,
///       #          float32: 19.5TFLOP/s, compute_efficiency: 0.55, memory_efficiency: 0.8, usable_memory: 0.92,
///       #          launch: 4us, cost_per_hour: 2.5, communication_share: 0.15}
///       link: nvlink-600         # between devices of a node: a preset, or {bandwidth: 300GB/s, latency: 3us}
///   network: infiniband-200      # between nodes, per device: likewise
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "plan/shapes/cluster.h"

namespace cotune {

/// Throws UserError with every mistake at once, each with file, line and field: missing and unknown keys, values out of
/// their range or without their unit, presets that do not exist, links that are needed and missing.
ClusterSpec read_cluster_file(const std::filesystem::path& path);
ClusterSpec parse_cluster_file(std::string_view text, const std::string& file_name);

/// Throws UserError where the nodes are of several groups, for what takes like nodes alone: `what`, as `an instance`.
void check_like_nodes(const ClusterSpec& cluster, const std::string& file_name, const std::string& what);

/// Throws UserError where a device has no rate for the dtype, which `asked_by` (an option, a field) asks for.
void check_rates(const ClusterSpec& cluster, const std::string& file_name, const std::string& dtype, const std::string& asked_by);

/// The spec as a file that reads back as the same spec, every value spelt out.
std::string to_yaml(const ClusterSpec& cluster);

}  // namespace cotune
