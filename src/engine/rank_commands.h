/// What the first rank of a group of processes tells the others, and what they answer, as CBOR. Every command goes to all
/// (a broadcast), is taken by all in the same order, and is answered by each before the next one comes. What they carry:
/// rank_work_json.h, rank_results_json.h, shared_adapter_json.h.
#pragma once

#include <cstdint>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>

#include "comm/communicator.h"

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
  end,            ///< all is well, or not, and the exit code; no answer
};

nlohmann::json to_json(RankCommand command);
RankCommand command_of(const nlohmann::json& message);
/// What a rank is at that executes it (RankTask): `gathering the adapter of job 2`. "" of run, which has actions, and of end.
std::string task_text(const nlohmann::json& command);

/// An exception on its way to the first rank: CommunicationEnded, MemoryLimitExceeded, UserError and SystemError stay what they
/// are, others become SystemErrors. rank_name: begins the message.
nlohmann::json error_to_json(const std::exception_ptr& error);
std::exception_ptr error_from_json(const nlohmann::json& error, const std::string& rank_name);

void broadcast_message(Communicator& communicator, const nlohmann::json& message);
nlohmann::json receive_broadcast(Communicator& communicator);
void send_message(Communicator& communicator, const nlohmann::json& message, int32_t peer);
nlohmann::json receive_message(Communicator& communicator, int32_t peer);

}  // namespace cotune
