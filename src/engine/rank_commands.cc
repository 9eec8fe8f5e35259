#include "engine/rank_commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/error.h"
#include "comm/byte_messages.h"
#include "ops/memory.h"
#include "ops/within_memory.h"

namespace cotune {
namespace {

using Json = nlohmann::json;

constexpr std::array<const char*, 10> command_names = {"run",    "exchange", "complete", "join",          "share",
                                                       "forget", "gather",   "divide",   "end_selection", "end"};

}  // namespace

Json to_json(RankCommand command) { return {{"command", command_names[static_cast<size_t>(command)]}}; }

RankCommand command_of(const Json& message) {
  const auto name = message.at("command").get<std::string>();
  const auto found = std::find(command_names.begin(), command_names.end(), name);
  COTUNE_CHECK(found != command_names.end(), "there is no command `{}`", name);
  return static_cast<RankCommand>(found - command_names.begin());
}

std::string task_text(const Json& command) {
  const auto of_job = [&](const char* what) { return fmt::format("{} of job {}", what, command.at("job").get<int32_t>()); };
  switch (command_of(command)) {
    case RankCommand::exchange:
      return of_job("agreeing on the exchange of gradients");
    case RankCommand::complete:
      return "completing steps";
    case RankCommand::join:
      return "joining the other ranks";
    case RankCommand::share:
      return of_job("sharing the adapter");
    case RankCommand::forget:
      return of_job("freeing the adapter");
    case RankCommand::gather:
      return of_job("gathering the adapter");
    case RankCommand::divide:
      return "reading its part of the model";
    case RankCommand::end_selection:
      return of_job("ending a selection pass");
    case RankCommand::run:
    case RankCommand::end:
      break;
  }
  return "";
}

Json error_to_json(const std::exception_ptr& error) {
  const auto json = [](const char* kind, const std::exception& each) { return Json{{"kind", kind}, {"text", each.what()}}; };
  try {
    return within_memory([&]() -> Json { std::rethrow_exception(error); });
  } catch (const CommunicationEnded& each) {
    return json("communication", each);
  } catch (const MemoryLimitExceeded& each) {
    return json("memory", each);
  } catch (const UserError& each) {
    return json("user", each);
  } catch (const std::exception& each) {
    return json("system", each);
  }
}

std::exception_ptr error_from_json(const Json& error, const std::string& rank_name) {
  const std::string text = rank_name + ": " + error.at("text").get<std::string>();
  const auto kind = error.at("kind").get<std::string>();
  if (kind == "communication") return std::make_exception_ptr(CommunicationEnded(text));
  if (kind == "memory") return std::make_exception_ptr(MemoryLimitExceeded(text));
  if (kind == "user") return std::make_exception_ptr(UserError(text));
  return std::make_exception_ptr(SystemError(text));
}

void broadcast_message(Communicator& communicator, const Json& message) {
  std::vector<uint8_t> bytes = Json::to_cbor(message);
  broadcast_bytes(communicator, bytes, communicator.rank());
}

Json receive_broadcast(Communicator& communicator) {
  std::vector<uint8_t> bytes;
  broadcast_bytes(communicator, bytes, 0);
  return Json::from_cbor(bytes);
}

void send_message(Communicator& communicator, const Json& message, int32_t peer) {
  send_bytes(communicator, Json::to_cbor(message), peer);
}

Json receive_message(Communicator& communicator, int32_t peer) { return Json::from_cbor(receive_bytes(communicator, peer)); }

}  // namespace cotune
