#include "data/template/chat_renderings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace cotune {
namespace {

using nlohmann::ordered_json;

constexpr jinja::Origin tools_origin = -1;

bool is_plain_role(const ordered_json& value) {
  if (!value.is_string()) return false;
  const auto& role = value.get_ref<const std::string&>();
  return !role.empty() && std::all_of(role.begin(), role.end(), [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
}

/// Of a key whose value is not null; else null.
const ordered_json* find_value(const ordered_json& message, const char* key) {
  const auto found = message.find(key);
  return found != message.end() && !found->is_null() ? &*found : nullptr;
}

jinja::Value message_value(const ordered_json& message, size_t index) {
  const auto origin = static_cast<jinja::Origin>(index) + 1;
  // transformers offers a message's reasoning under these names, whichever of them it came by.
  const ordered_json* reasoning = nullptr;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    if (!reasoning) reasoning = find_value(message, name);
  }
  std::vector<std::pair<jinja::Text, jinja::Value>> entries;
  if (reasoning && find_value(message, "thinking") == nullptr) {
    entries.emplace_back(jinja::Text("thinking"), jinja::from_json(*reasoning, origin));
  }
  for (const auto& [key, value] : message.items()) {
    if (value.is_null() || (reasoning && key == "reasoning_content")) continue;  // transformers gives templates no key whose value is null
    const bool trusted = key == "role" && is_plain_role(value);
    entries.emplace_back(jinja::Text(key, origin), jinja::from_json(value, trusted ? jinja::template_origin : origin));
  }
  if (reasoning) entries.emplace_back(jinja::Text("reasoning_content"), jinja::from_json(*reasoning, origin));
  return jinja::Value::dict(std::move(entries));
}

}  // namespace

ChatRenderings::ChatRenderings(const jinja::Template& chosen, const std::map<std::string, std::string>& special_tokens,
                               const ordered_json& messages, const ordered_json& tools, const ChatLimits& limits, const std::optional<std::tm>& now)
    : template_(chosen),
      special_tokens_(special_tokens),
      limits_(limits),
      steps_left_(limits.steps),
      tools_(jinja::from_json(tools, tools_origin)),
      now_(now) {
  for (const ordered_json& message : messages) {
    messages_.push_back(message_value(message, messages_.size()));
    lacks_content_ = lacks_content_ || find_value(message, "content") == nullptr;
  }
}

void ChatRenderings::fail_spent() {
  steps_left_ = 0;
  throw jinja::StepsSpent(fmt::format("{}: found a chat of {} messages, which rendered up to each of its answers takes more than the {} steps "
                                      "that are accepted: divide it",
                                      template_.name(), messages_.size(), limits_.steps));
}

std::vector<jinja::Value> ChatRenderings::listed(size_t count) {
  if (steps_left_ < count) fail_spent();
  steps_left_ -= count;
  return std::vector<jinja::Value>(messages_.begin(), messages_.begin() + static_cast<ptrdiff_t>(count));
}

jinja::Text ChatRenderings::render(std::vector<jinja::Value> messages, jinja::Value tools, bool add_generation_prompt) {
  jinja::Variables variables = {{"messages", jinja::Value::list(std::move(messages))},
                                {"tools", std::move(tools)},
                                {"documents", jinja::None{}},
                                {"add_generation_prompt", add_generation_prompt}};
  for (const auto& [name, token] : special_tokens_) variables.emplace_back(name, jinja::Value::text(token));
  try {
    return template_.render(variables, now_, limits_.rendering, &steps_left_);
  } catch (const jinja::StepsSpent&) {
    fail_spent();
  } catch (const UserError& error) {
    const std::string_view reason = error.what();
    if (!lacks_content_ || reason.find("has no attribute content") == std::string_view::npos) throw;
    throw_user_error("{}; this template takes no message without: add \"content\": \"\" to it", reason);
  }
}

jinja::Text ChatRenderings::first(size_t count, bool add_generation_prompt) {
  return render(listed(count), tools_, add_generation_prompt);
}

jinja::Text ChatRenderings::with(size_t index, const ordered_json& message) {
  std::vector<jinja::Value> messages = listed(messages_.size());
  messages[index] = message_value(message, index);
  return render(std::move(messages), tools_, false);
}

jinja::Text ChatRenderings::without_tools() {
  return render(listed(messages_.size()), jinja::None{}, false);
}

}  // namespace cotune
