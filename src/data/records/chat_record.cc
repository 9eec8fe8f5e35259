#include "data/records/chat_record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "data/records/jsonl.h"
#include "data/records/message_weight.h"
#include "data/records/record_error.h"
#include "data/records/sharegpt.h"

namespace cotune {
namespace {

using nlohmann::ordered_json;

void check_tool_calls(const ordered_json& calls, const std::string& place) {
  if (!calls.is_array()) throw RecordError(place, fmt::format("expected a list of calls, found {}", type_of(calls)));
  for (size_t i = 0; i < calls.size(); ++i) {
    const ordered_json& call = calls[i].is_object() && calls[i].contains("function") ? calls[i]["function"] : calls[i];
    if (call.is_object() && call.contains("name") && call["name"].is_string()) continue;
    throw RecordError(fmt::format("{}[{}]", place, i),
                      "expected {\"type\": \"function\", \"function\": {\"name\": …, \"arguments\": …}}");
  }
}

std::string joined_parts(const ordered_json& parts, const std::string& place) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const ordered_json& part = parts[i];
    const std::string of_part = fmt::format("{}[{}]", place, i);
    if (!part.is_object())
      throw RecordError(of_part, fmt::format("expected {{\"type\": \"text\", \"text\": …}}, found {}", type_of(part)));
    if (const std::string& type = string_field(part, "type", of_part); type != "text") {
      throw RecordError(of_part + ".type", fmt::format("expected \"text\", found {}: messages are texts alone", part["type"].dump()));
    }
    text += string_field(part, "text", of_part);
  }
  return text;
}

void read_message(ordered_json& message, const std::string& place) {
  static constexpr std::array<std::string_view, 7> roles = {"system", "developer",    "user",     "assistant",
                                                            "tool",   "tool_results", "ipython"};
  if (!message.is_object()) throw RecordError(place, fmt::format("expected an object, found {}", type_of(message)));
  const auto role = message.find("role");
  if (role == message.end()) throw RecordError(place + ".role", "missing; expected a string");
  if (!role->is_string() ||
      std::find(roles.begin(), roles.end(), role->get_ref<const std::string&>()) == roles.end()) {
    throw RecordError(place + ".role", fmt::format("expected one of {}; found {}{}", fmt::join(roles, ", "),
                                                   role->is_string() ? role->dump() : type_of(*role),
                                                   *role == "function" ? ", whose newer name is tool" : ""));
  }
  if (holds_something(message, "function_call")) {
    throw RecordError(place + ".function_call", "is OpenAI's older form of a call; expected \"tool_calls\": [{\"type\": \"function\", "
                                                "\"function\": {\"name\": …, \"arguments\": …}}]");
  }
  const auto content = message.find("content");
  const bool has_calls = message.contains("tool_calls") && !message["tool_calls"].is_null();
  if (has_calls) check_tool_calls(message["tool_calls"], place + ".tool_calls");
  if (content == message.end() || content->is_null()) {
    if (!has_calls) {
      throw RecordError(place + ".content", content == message.end() ? "missing; expected a string"
                                                                     : "expected a string, found null");
    }
  } else if (content->is_array()) {
    *content = joined_parts(*content, place + ".content");
  } else if (!content->is_string()) {
    throw RecordError(place + ".content", fmt::format("expected a string or a list of parts, found {}", type_of(*content)));
  }
  if (const std::optional<int> weight = message_weight(message, place)) message["weight"] = *weight;
}

ordered_json json_in(const std::string& text, const std::string& name, const char* expected) {
  try {
    return parse_json_line(text);
  } catch (const std::runtime_error& error) {
    throw RecordError(name, fmt::format("expected {}, or the JSON text of one, found a string: {}", expected, error.what()));
  }
}

/// Each an object, or the JSON text of one.
ordered_json checked_tools(ordered_json tools) {
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string name = fmt::format("tools[{}]", i);
    if (tools[i].is_string()) tools[i] = json_in(tools[i].get_ref<const std::string&>(), name, "an object");
    if (!tools[i].is_object()) throw RecordError(name, fmt::format("expected an object, or the JSON text of one, found {}", type_of(tools[i])));
  }
  return tools;
}

}  // namespace

bool is_chat(const ordered_json& record, DataFormat format) {
  const auto is_list = [&](const char* field) { return record.contains(field) && record[field].is_array(); };
  if (format == DataFormat::completion) return is_list("prompt") || is_list("completion");
  return format == DataFormat::messages || format == DataFormat::sharegpt;
}

ordered_json chat_of(const ordered_json& record, DataFormat format, bool learns_prompt) {
  if (format == DataFormat::sharegpt) return chat_of(messages_of_sharegpt(record), DataFormat::messages);
  ordered_json chat = {{"messages", messages_in(record, format == DataFormat::completion ? "prompt" : "messages")}};
  add_system(record, chat["messages"]);
  if (format == DataFormat::completion) {
    for (ordered_json& message : chat["messages"]) {
      if (!learns_prompt) message["weight"] = 0;
    }
    for (ordered_json& message : messages_in(record, "completion")) chat["messages"].push_back(std::move(message));
  }
  if (ordered_json tools = tools_of_chat(record); !tools.is_null()) chat["tools"] = std::move(tools);
  return chat;
}

ordered_json messages_in(const ordered_json& record, const char* field) {
  const auto found = record.find(field);
  if (found == record.end()) throw RecordError(field, "missing; expected a list of messages");
  if (!found->is_array() || found->empty()) {
    throw RecordError(field, fmt::format("expected a list of at least one message, found {}",
                                         found->is_array() ? "an empty one" : type_of(*found)));
  }
  ordered_json messages = *found;
  for (size_t i = 0; i < messages.size(); ++i) read_message(messages[i], fmt::format("{}[{}]", field, i));
  return messages;
}

void add_system(const ordered_json& record, ordered_json& messages) {
  const auto system = record.find("system");
  if (system == record.end() || system->is_null()) return;
  if (!system->is_string()) throw RecordError("system", fmt::format("expected a string, found {}", type_of(*system)));
  if (system->get_ref<const std::string&>().empty() || messages[0]["role"] == "system") return;
  messages.insert(messages.begin(), ordered_json{{"role", "system"}, {"content", *system}});
}

ordered_json tools_of_chat(const ordered_json& record) {
  const auto found = record.find("tools");
  if (holds_something(record, "functions") && !holds_something(record, "tools")) {
    throw RecordError("functions", "is OpenAI's older name; expected \"tools\": [{\"type\": \"function\", \"function\": …}, …]");
  }
  if (found == record.end() || found->is_null()) return nullptr;
  if (found->is_array()) return checked_tools(*found);
  if (found->is_string()) {
    const auto& text = found->get_ref<const std::string&>();
    if (text.empty()) return nullptr;
    ordered_json tools = json_in(text, "tools", "a list");
    if (tools.is_array()) return tools.empty() ? ordered_json() : checked_tools(std::move(tools));
  }
  throw RecordError("tools", fmt::format("expected a list, or the JSON text of one, found {}", type_of(*found)));
}

}  // namespace cotune
