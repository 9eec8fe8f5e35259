/// Replicas onto the devices of like nodes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/plan.h"
#include "schedule/pipeline/pipeline_cluster.h"

namespace cotune {

/// Devices of each replica, in order, given how many each needs: the largest first, each on the first node
/// with room, or on whole nodes where it needs several. Nothing where they do not fit so.
std::optional<std::vector<std::vector<PlannedDevice>>> place_replicas(std::span<const int64_t> devices,
                                                                      const NodeGroup& group);

/// The same, where those that find no place are left out: of these no devices.
std::vector<std::vector<PlannedDevice>> place_what_fits(std::span<const int64_t> devices, const NodeGroup& group);

/// As many replicas of so many devices as find a place.
int64_t most_replicas(int64_t devices, const NodeGroup& group);

/// The link between two devices of a cluster: the node's within one, else the network.
const LinkSpec& link_between(const ClusterSpec& cluster, const PlannedDevice& a, const PlannedDevice& b);

/// The node group of that name. Throws UserError when there is none.
const NodeGroup& nodes_called(const ClusterSpec& cluster, const std::string& name);

/// The links between the stages of a replica, rank by stage: those of the first devices of neighbours, and of the last and
/// the first, which are neighbours where stages are interleaved.
PipelineCluster links_between_stages(const ClusterSpec& cluster, const std::vector<PlannedStage>& stages);

}  // namespace cotune
