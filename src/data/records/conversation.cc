#include "data/records/conversation.h"

#include "base/error.h"
#include "base/file.h"
#include "data/records/chat_record.h"
#include "data/records/jsonl.h"
#include "data/records/record_error.h"
#include "data/tokenizer/unicode.h"

namespace cotune {
namespace {

using nlohmann::ordered_json;

ordered_json message(const char* role, std::string_view content) {
  return {{"role", role}, {"content", replace_invalid_utf8(content)}};
}

}  // namespace

Conversation::Conversation(const std::optional<std::string>& system) { set_system(system); }

Conversation Conversation::from_messages(const ordered_json& messages) {
  Conversation conversation;
  if (messages.is_array() && messages.empty()) return conversation;
  try {
    conversation.messages_ = messages_in({{"messages", messages}}, "messages");
  } catch (const RecordError& error) {
    throw_user_error("{}: {}", error.field(), error.what());
  }
  return conversation;
}

void Conversation::say(std::string_view text) { messages_.push_back(message("user", text)); }

void Conversation::answer(std::string_view text) { messages_.push_back(message("assistant", text)); }

void Conversation::set_system(const std::optional<std::string>& system) {
  if (has_system()) messages_.erase(messages_.begin());
  if (system) messages_.insert(messages_.begin(), message("system", *system));
}

void Conversation::begin_anew() { keep(has_system() ? 1 : 0); }

bool Conversation::undo() {
  if (!take_back_answer() && !awaits_answer()) return false;
  keep(messages_.size() - 1);
  return true;
}

bool Conversation::take_back_answer() {
  for (size_t count = messages_.size(); count > 0; --count) {
    if (messages_[count - 1]["role"] != "user") continue;
    const bool answered = count < messages_.size();
    keep(count);
    return answered;
  }
  return false;
}

void Conversation::keep(size_t count) {
  while (messages_.size() > count) messages_.erase(messages_.size() - 1);
}

ordered_json tools_of(const SessionFile& session) { return tools_of_chat(session.record); }

SessionFile read_session(const std::filesystem::path& path) {
  SessionFile session;
  try {
    session.record = parse_json_line(read_file(path));
    const ordered_json& file = session.record;
    if (file.is_object() && file.contains("messages")) {
      session.of_all = Conversation::from_messages(file["messages"]);
    } else if (file.is_object() && file.contains("conversations") && file["conversations"].is_object()) {
      for (const auto& [name, messages] : file["conversations"].items())
        session.by_adapter.emplace(name, Conversation::from_messages(messages));
    } else {
      throw_user_error("is no session: expected {{\"messages\": […]}}, or {{\"conversations\": {{\"ADAPTER\": […]}}}}");
    }
    tools_of(session);
  } catch (const RecordError& error) {
    throw_user_error("{}: {}: {}", path.string(), error.field(), error.what());
  } catch (const std::runtime_error& error) {
    const std::string text = error.what();
    if (text.starts_with(path.string())) throw UserError(text);
    throw_user_error("{}: {}", path.string(), text);
  }
  return session;
}

void write_session(const std::filesystem::path& path, const SessionFile& session) {
  ordered_json file = session.record;
  file.erase(session.of_all ? "conversations" : "messages");
  if (session.of_all) file["messages"] = session.of_all->messages();
  if (!session.of_all) file["conversations"] = ordered_json::object();
  for (const auto& [name, conversation] : session.by_adapter) file["conversations"][name] = conversation.messages();
  write_file_atomically(path, file.dump() + "\n");
}

}  // namespace cotune
