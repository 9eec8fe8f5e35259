/// What the first rank of a group of processes tells the others, and what they answer, as CBOR. Every command goes to all
/// (a broadcast), is taken by all in the same order, and is answered by each before the next one comes.
#pragma once

#include <cstdint>
#include <exception>
#include <list>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "adapter/adapter.h"
#include "comm/communicator.h"
#include "engine/process_rank.h"
#include "schedule/pipeline/replica_plans.h"

namespace cotune {

enum class RankCommand {
  run,            ///< plans of all replicas; answer: results and times
  exchange,       ///< of several replicas: answer: which part of a job's adapter the rank has; then one message to it, with which
                  ///< slices it exchanges with whom
  complete,       ///< after a run that broke off: steps that some rank has made; answer: results
  join,           ///< new groups for messages and for sums, in the place of those that have ended
  share,          ///< make a job's adapter, with this structure; answer: which part of it the rank has. Its values follow as one
                  ///< message to each rank that has made it, which answers once more
  forget,
  gather,         ///< answer: which part the rank has; then one message with the values
  divide,         ///< the model, as these layouts of replicas say: let go of all adapters and of weights that they leave to others, read those that
                  ///< are missing; answer: what weights take, and their forms. A join follows; where a rank has failed, another divide
  end_selection,  ///< answer: what was chosen in the rank's layers; of those that divide layers, only the first one's
  end,            ///< all is well, or not; no answer
};

/// Rounds as another process runs them: it owns their batches, and finds the adapters by the job.
struct ReceivedRounds {
  std::list<Batch> batches;
  std::vector<JobRound> rounds;
  std::vector<bool> has_adapter;  ///< of each round; otherwise it is the base model's
};

nlohmann::json to_json(RankCommand command);
RankCommand command_of(const nlohmann::json& message);
/// What a rank is at that executes it (RankTask): `gathering the adapter of job 2`. "" of run, which has actions, and of end.
std::string task_text(const nlohmann::json& command);

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

/// What a run has written into rounds, in their order.
nlohmann::json results_to_json(std::span<const JobRound> rounds);
void take_results(const nlohmann::json& results, std::span<JobRound> rounds);

nlohmann::json made_to_json(const MadeSteps& made);
/// device: of the records.
MadeSteps made_from_json(const nlohmann::json& made, at::Device device);

/// Without compute dtype and device, which are the ranks' own, `shard` and `held`.
nlohmann::json setup_to_json(const AdapterSetup& setup);
AdapterSetup setup_from_json(const nlohmann::json& setup);

nlohmann::json time_to_json(const RankTime& time);
RankTime time_from_json(const nlohmann::json& time);

nlohmann::json structure_to_json(std::span<const Adapter::NamedTensor> structure);
std::vector<Adapter::NamedTensor> structure_from_json(const nlohmann::json& structure);

/// An exception on its way to the first rank: CommunicationEnded, MemoryLimitExceeded, UserError and SystemError stay what they
/// are, others become SystemErrors. rank_name: begins the message.
nlohmann::json error_to_json(const std::exception_ptr& error);
std::exception_ptr error_from_json(const nlohmann::json& error, const std::string& rank_name);

void broadcast_message(Communicator& communicator, const nlohmann::json& message);
nlohmann::json receive_broadcast(Communicator& communicator);
void send_message(Communicator& communicator, const nlohmann::json& message, int32_t peer);
nlohmann::json receive_message(Communicator& communicator, int32_t peer);

}  // namespace cotune
