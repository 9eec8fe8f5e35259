/// What another process makes a job's adapter from, as JSON for rank_commands.h; values follow by themselves (adapter_state.h).
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "adapter/adapter.h"

namespace cotune {

/// Without compute dtype and device, which are the ranks' own, `shard` and `held`.
nlohmann::json setup_to_json(const AdapterSetup& setup);
AdapterSetup setup_from_json(const nlohmann::json& setup);

nlohmann::json structure_to_json(std::span<const Adapter::NamedTensor> structure);
std::vector<Adapter::NamedTensor> structure_from_json(const nlohmann::json& structure);

}  // namespace cotune
