/// What planning found, for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "plan/make_plan.h"
#include "plan/node_changes.h"

namespace cotune {

/// {"plan": … or null, "alternatives": [{"deployment", "sharing", "order", "recompute", "shards_weights", "replicas", "fits",
///  "predicted", "is_bound", "overflow", "rejected_for"}],
///  "configurations": [{…, "chunk_tokens", "longest_row", "tokens_per_device_s", "memory_bytes", "estimated_chunk_s", "overflow", "rejected_for"}],
///  "deployments": [{…, "dispatch_s", "estimated_s", "estimated_bytes", "estimate_constraint", "simulated_s", "simulated_bytes", "overflow",
///  "rejected_for"}], "enumerated": counts of the enumeration,
///  "groupings": [{…, "seconds", "is_bound", "fullest_bytes", "overflow", "rejected_for"}],
///  "uneven_buckets": [{"replica", "bucket", "backward_ratio"}] of the plan (PlannedReplica::uneven_buckets),
///  "node_changes": [{"nodes", "from", "to", "replicas", "predicted" or null, "speed_up", "saves_memory", "assumed_network", "constraint"}],
///  "advice"}. "overflow": {"term", "bytes"}, null where everything fits. Fields as in alternatives.h, and null where these are 0 for what
/// is not known: "predicted" of an alternative of which nothing can be deployed (of one job after the other, where one has no plan: all but
/// "fullest_bytes", which is then needed at least), "speed_up" where nothing fits, "tokens_per_device_s" where no chunk does, "memory_bytes" and
/// "estimated_chunk_s" of a configuration without a price, "simulated_s" where nothing that was simulated fits, and with "simulated_bytes" where
/// nothing was, and "lower_bound_s" where nothing was enumerated.
nlohmann::ordered_json to_json(const PlanningResult& result, const std::vector<NodeChange>& changes = {});

/// An element of its "groupings".
nlohmann::ordered_json to_json(const ConsideredGrouping& grouping);

}  // namespace cotune
