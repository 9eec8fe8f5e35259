#include "data/records/conversation.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/atomic_file.h"
#include "base/diagnostics.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/utf8.h"
#include "data/records/chat_record.h"
#include "data/records/field_line.h"
#include "data/records/jsonl.h"
#include "data/records/record_error.h"

namespace cotune {
namespace {

using nlohmann::ordered_json;

ordered_json message(const char* role, std::string_view content) {
  return {{"role", role}, {"content", replace_invalid_utf8(content)}};
}

/// What a session's file holds in place of one.
std::string found_in(const ordered_json& record) {
  if (!record.is_object()) return type_of(record);
  std::string names;
  for (const auto& [name, value] : record.items()) names += (names.empty() ? "the fields " : ", ") + name.substr(0, 40);
  return names.empty() ? "an object without fields" : names.substr(0, 200);
}

}  // namespace

Conversation::Conversation(const std::optional<std::string>& system) { set_system(system); }

Conversation Conversation::from_messages(const ordered_json& messages, const std::string& field) {
  Conversation conversation;
  if (messages.is_array() && messages.empty()) return conversation;
  conversation.messages_ = messages_in({{field, messages}}, field.c_str());
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
  constexpr const char* accepted = "{\"messages\": […]}, or {\"conversations\": {\"ADAPTER\": […]}} of several adapters";
  const std::string text = read_file(path);
  SessionFile session;
  Diagnostics mistake;
  try {
    session.record = parse_json_line(text);
    const ordered_json& file = session.record;
    if (file.is_object() && file.contains("messages")) {
      session.of_all = Conversation::from_messages(file["messages"]);
    } else if (file.is_object() && file.contains("conversations") && file["conversations"].is_object()) {
      for (const auto& [name, messages] : file["conversations"].items())
        session.by_adapter.emplace(name, Conversation::from_messages(messages, "conversations." + name));
    } else {
      throw RecordError("", fmt::format("is no session: expected {}; found {}", accepted, found_in(file)));
    }
    tools_of(session);
  } catch (const RecordError& error) {
    mistake.add(path.string(), field_line(text, error.field()), error.field(), error.what());
  } catch (const JsonError& error) {
    const std::string_view before = std::string_view(text).substr(0, error.column() - std::min<size_t>(error.column(), 1));
    const size_t column = before.size() - (before.rfind('\n') + 1) + 1;
    mistake.add(path.string(), static_cast<int>(1 + std::ranges::count(before, '\n')),
                error.column() > 0 ? fmt::format("column {}", column) : "",
                fmt::format("{}; a session is one object of JSON: {}", error.reason(), accepted));
  }
  mistake.throw_if_any();
  return session;
}

void write_session(const std::filesystem::path& path, const SessionFile& session) {
  ordered_json file = session.record;
  file.erase(session.of_all ? "conversations" : "messages");
  if (session.of_all) file["messages"] = session.of_all->messages();
  if (!session.of_all) file["conversations"] = ordered_json::object();
  for (const auto& [name, conversation] : session.by_adapter) file["conversations"][name] = conversation.messages();
  write_file_atomically(where_link_leads(path), text_of_json(file) + "\n");
}

}  // namespace cotune
