#include "data/records/sharegpt.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "data/records/chat_record.h"
#include "data/records/jsonl.h"
#include "data/records/message_weight.h"
#include "data/records/record_error.h"

namespace cotune {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view call_role = "function_call";
constexpr std::array<std::pair<std::string_view, std::string_view>, 18> roles = {{
    {"human", "user"},        {"user", "user"},
    {"gpt", "assistant"},     {"assistant", "assistant"},
    {"chatgpt", "assistant"}, {"model", "assistant"},
    {"bot", "assistant"},     {"bing", "assistant"},
    {"bard", "assistant"},    {"system", "system"},
    {"developer", "developer"}, {"tool", "tool"},
    {"observation", "tool"},  {"function_response", "tool"},
    {"tool_response", "tool"}, {"ipython", "ipython"},
    {call_role, call_role},   {"tool_call", call_role},
}};

std::string role_of(const ordered_json& turn, const char* key, const std::string& place) {
  const auto found = turn.find(key);
  if (found == turn.end()) throw RecordError(fmt::format("{}.{}", place, key), "missing; expected a string");
  const std::string name = found->is_string() ? found->get<std::string>() : "";
  const auto role = std::find_if(roles.begin(), roles.end(), [&](const auto& entry) { return entry.first == name; });
  if (role != roles.end()) return std::string(role->second);
  std::string names;
  for (const auto& [accepted, meaning] : roles) names += (names.empty() ? "" : ", ") + std::string(accepted);
  throw RecordError(fmt::format("{}.{}", place, key),
                    fmt::format("expected one of {}; found {}", names, found->is_string() ? found->dump() : type_of(*found)));
}

ordered_json tool_calls_of(const std::string& text, const std::string& field) {
  static constexpr const char* expected = "expected the JSON text of a call {\"name\": …, \"arguments\": …} or of a list of calls";
  ordered_json calls;
  try {
    calls = parse_json_line(text);
  } catch (const std::runtime_error& error) {
    throw RecordError(field, fmt::format("{}: {}", expected, error.what()));
  }
  if (calls.is_object()) calls = ordered_json::array({std::move(calls)});
  ordered_json result = ordered_json::array();
  bool sound = calls.is_array() && !calls.empty();
  for (size_t i = 0; sound && i < calls.size(); ++i) {
    sound = calls[i].is_object() && calls[i].contains("name") && calls[i]["name"].is_string() && calls[i].contains("arguments");
    if (sound) result.push_back({{"type", "function"}, {"function", std::move(calls[i])}});
  }
  if (!sound) throw RecordError(field, expected);
  return result;
}

}  // namespace

ordered_json messages_of_sharegpt(const ordered_json& record) {
  const auto turns = record.find("conversations");
  if (turns == record.end()) throw RecordError("conversations", "missing; expected a list of turns");
  if (!turns->is_array() || turns->empty()) {
    throw RecordError("conversations",
                      fmt::format("expected a list of at least one turn, found {}", turns->is_array() ? "an empty one" : type_of(*turns)));
  }
  ordered_json messages = ordered_json::array();
  for (size_t i = 0; i < turns->size(); ++i) {
    const ordered_json& turn = (*turns)[i];
    const std::string place = fmt::format("conversations[{}]", i);
    if (!turn.is_object()) throw RecordError(place, fmt::format("expected an object, found {}", type_of(turn)));
    const bool is_message = turn.contains("role") && !turn.contains("from");
    const std::string role = role_of(turn, is_message ? "role" : "from", place);
    const char* key = is_message ? "content" : "value";
    const std::string field = fmt::format("{}.{}", place, key);
    const auto value = turn.find(key);
    ordered_json message = {{"role", role}};
    if (is_message && value != turn.end() && value->is_array()) {
      message["content"] = *value;
    } else if (value == turn.end() || !value->is_string()) {
      const bool has_calls = is_message && turn.contains("tool_calls") && !turn["tool_calls"].is_null();
      if (!has_calls) throw RecordError(field, value == turn.end() ? "missing; expected a string" : "expected a string, found " + type_of(*value));
    } else if (role == call_role) {
      message = {{"role", "assistant"}, {"content", ""}, {"tool_calls", tool_calls_of(value->get_ref<const std::string&>(), field)}};
    } else {
      message["content"] = *value;
    }
    if (const std::optional<int> weight = message_weight(turn, place)) message["weight"] = *weight;
    for (const char* kept : {"name", "tool_calls", "tool_call_id", "reasoning_content", "function_call"}) {
      if (turn.contains(kept) && !turn[kept].is_null()) message[kept] = turn[kept];
    }
    messages.push_back(std::move(message));
  }
  add_system(record, messages);
  ordered_json result = {{"messages", std::move(messages)}};
  for (const char* kept : {"tools", "functions"}) {
    if (record.contains(kept)) result[kept] = record[kept];
  }
  return result;
}

}  // namespace cotune
