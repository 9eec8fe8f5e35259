/// What a rank answers of a run, as JSON for rank_commands.h.
#pragma once

#include <nlohmann/json.hpp>
#include <span>

#include "engine/job_round.h"
#include "engine/rank_results.h"
#include "engine/rank_times.h"

namespace cotune {

/// What a run has written into rounds, in their order.
nlohmann::json results_to_json(std::span<const JobRound> rounds);
void take_results(const nlohmann::json& results, std::span<JobRound> rounds);

nlohmann::json made_to_json(const MadeSteps& made);
/// device: of the records.
MadeSteps made_from_json(const nlohmann::json& made, at::Device device);

nlohmann::json time_to_json(const RankTime& time);
RankTime time_from_json(const nlohmann::json& time);

}  // namespace cotune
