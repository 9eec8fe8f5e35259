/// The machines a plan is made for: devices, how fast they are, and the links between them. Plain values; a file of them
/// is read by cluster_file.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/shapes/weight_forms.h"
#include "schedule/profiled_collective.h"

namespace cotune {

/// One accelerator, or one CPU. Rates are the vendor's peaks for dense products; what is reached is peak · efficiency.
struct DeviceSpec {
  std::string name;
  int64_t memory_bytes = 0;
  std::map<std::string, double> flops;  ///< compute dtype (float32, bfloat16) → operations per second
  double memory_bandwidth = 0;          ///< bytes per second
  double compute_efficiency = 0.55;     ///< (0, 1]: share of `flops` that large products reach
  double memory_efficiency = 0.8;       ///< (0, 1]: the same of memory_bandwidth
  double usable_memory = 0.92;          ///< (0, 1]: share of memory_bytes that tensors may take
  double launch_seconds = 4e-6;         ///< per operator: the least time that a kernel takes
  double cost_per_hour = 0;             ///< in any currency; 0: unknown
  double communication_share = 0.15;    ///< [0, 0.99]: of the compute rate, lost while all-reduces run beside computation
  /// As the engine holds frozen weights on it, of a device at hand; none: values in the compute dtype. A cluster file has none.
  std::optional<WeightForms> weights;
  bool operator==(const DeviceSpec&) const = default;

  int64_t usable_bytes() const { return static_cast<int64_t>(usable_memory * static_cast<double>(memory_bytes)); }
};

/// A collective of one kind between so many ranks: seconds(bytes) = latency_s + bytes · seconds_per_byte.
struct CollectiveTime {
  double latency_s = 0;
  double seconds_per_byte = 0;
  bool operator==(const CollectiveTime&) const = default;

  double seconds(double bytes) const { return latency_s + bytes * seconds_per_byte; }
};

/// seconds(bytes) = latency + bytes / bandwidth, each direction by itself.
struct LinkSpec {
  double bandwidth = 0;  ///< bytes per second of one device
  double latency = 0;    ///< seconds
  /// Collectives over it that were measured, by kind and ranks (plan/cost/measured_collectives.h): taken in place of the formulas of
  /// rings. A cluster file has none.
  std::map<std::pair<CollectiveKind, int64_t>, CollectiveTime> measured = {};
  bool operator==(const LinkSpec&) const = default;

  double seconds(double bytes) const { return latency + bytes / bandwidth; }
  /// Of such a collective of `bytes` (ProfiledCollective::bytes); nothing where it was not measured between so many ranks.
  std::optional<double> measured_seconds(CollectiveKind kind, int64_t ranks, double bytes) const;
  /// Everything over it takes so many times as long.
  LinkSpec slowed_by(double factor) const;
};

/// Nodes that are alike.
struct NodeGroup {
  std::string name;
  int64_t count = 1;
  int64_t devices = 1;  ///< of one node
  DeviceSpec device;
  LinkSpec link;        ///< between devices of one node; unset where there is one
  bool operator==(const NodeGroup&) const = default;
};

/// A device of the cluster file.
struct PlannedDevice {
  std::string nodes;   ///< name of the node group
  int64_t node = 0;    ///< index in the group
  int64_t device = 0;  ///< index in the node
  bool operator==(const PlannedDevice&) const = default;
};

struct ClusterSpec {
  std::vector<NodeGroup> nodes;
  LinkSpec network;  ///< between nodes, per device; unset where there is one node
  bool operator==(const ClusterSpec&) const = default;

  int64_t device_count() const;
  /// The link that `devices` devices of a group talk over: the node's while they fit in one, else the network.
  const LinkSpec& link_of(const NodeGroup& group, int64_t devices) const;
};

/// Devices by name ("A100-40", "H100", …; case does not matter). Throws UserError that lists the names for an unknown one.
DeviceSpec device_preset(std::string_view name);
std::vector<std::string> device_preset_names();

/// Links by name: nvlink-600, nvlink-400, nvlink-900, nvlink-112, pcie4, infiniband-100 (Gbit/s), …
LinkSpec link_preset(std::string_view name);
std::vector<std::string> link_preset_names();

}  // namespace cotune
