/// What planning found, for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "plan/make_plan.h"
#include "plan/node_changes.h"

namespace cotune {

/// {"plan": … or null, "alternatives": [{"deployment", "sharing", "order", "recompute", "shards_weights", "replicas", "fits",
///  "predicted", "rejected_for"}], "configurations": […], "deployments": […], "enumerated": counts of the enumeration,
///  "node_changes": [{"nodes", "from", "to", "replicas", "predicted" or null, "speed_up", "saves_memory", "constraint"}],
///  "advice"}.
nlohmann::ordered_json to_json(const PlanningResult& result, const std::vector<NodeChange>& changes = {});

}  // namespace cotune
