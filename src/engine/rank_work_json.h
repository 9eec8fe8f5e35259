/// What ranks of other processes need of the first one's work: rounds, plans, layouts, exchanges; as JSON for rank_commands.h.
#pragma once

#include <cstddef>
#include <list>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "engine/batch.h"
#include "engine/gradient_exchange.h"
#include "engine/job_round.h"
#include "schedule/pipeline/replica_plans.h"

namespace cotune {

/// Rounds as another process runs them: it owns their batches, and finds the adapters by the job.
struct ReceivedRounds {
  std::list<Batch> batches;
  std::vector<JobRound> rounds;
  std::vector<bool> has_adapter;  ///< of each round; otherwise it is the base model's
};

nlohmann::json rounds_to_json(std::span<const JobRound> rounds);
ReceivedRounds rounds_from_json(const nlohmann::json& rounds);

nlohmann::json layouts_to_json(std::span<const PipelineLayout> layouts);
std::vector<PipelineLayout> layouts_from_json(const nlohmann::json& layouts);

/// Without the plans' schedules and, but for action_seconds_to_json, predictions, which no rank reads.
nlohmann::json plans_to_json(const ReplicaPlans& plans);
/// With the plan and the rows of one replica; those of the others are empty.
ReplicaPlans plans_from_json(const nlohmann::json& plans, size_t replica);

/// What they are predicted to take (action_seconds), of all ranks of all replicas; the inverse for one list of actions.
nlohmann::json action_seconds_to_json(const ReplicaPlans& plans);
std::vector<double> action_seconds_from_json(const nlohmann::json& seconds, size_t replica, size_t rank);

nlohmann::json exchange_to_json(const JobExchange& exchange);
JobExchange exchange_from_json(const nlohmann::json& exchange);

}  // namespace cotune
