#include "data/template/chat_template.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"

namespace cotune {
namespace {

using nlohmann::ordered_json;

constexpr jinja::Origin tools_origin = -1;

bool is_plain_role(const ordered_json& value) {
  if (!value.is_string()) return false;
  const auto& role = value.get_ref<const std::string&>();
  return !role.empty() && std::all_of(role.begin(), role.end(), [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
}

jinja::Value message_value(const ordered_json& message, jinja::Origin origin) {
  // transformers offers a message's reasoning under these names, whichever of them it came by.
  const ordered_json* reasoning = nullptr;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    if (!reasoning && message.contains(name) && !message[name].is_null()) reasoning = &message[name];
  }
  std::vector<std::pair<jinja::Text, jinja::Value>> entries;
  if (reasoning && !message.contains("thinking")) {
    entries.emplace_back(jinja::Text("thinking"), jinja::from_json(*reasoning, origin));
  }
  for (const auto& [key, value] : message.items()) {
    if (reasoning && key == "reasoning_content") continue;
    const bool trusted = key == "role" && is_plain_role(value);
    entries.emplace_back(jinja::Text(key, origin), jinja::from_json(value, trusted ? jinja::template_origin : origin));
  }
  if (reasoning) entries.emplace_back(jinja::Text("reasoning_content"), jinja::from_json(*reasoning, origin));
  return jinja::Value::dict(std::move(entries));
}

/// The bytes from the first to the last that came from `origin`; empty at 0 when there are none.
ByteRange range_of(const jinja::Text& text, jinja::Origin origin) {
  ByteRange range;
  bool found = false;
  size_t begin = 0;
  for (const jinja::Run& run : text.runs()) {
    if (run.origin == origin) {
      if (!found) range.begin = begin;
      found = true;
      range.end = run.end;
    }
    begin = run.end;
  }
  return range;
}

/// What of [0, size) lies in none of the ranges, which are ascending and disjoint.
std::vector<ByteRange> complement(const std::vector<ByteRange>& ranges, size_t size) {
  std::vector<ByteRange> rest;
  size_t begin = 0;
  for (const ByteRange& range : ranges) {
    if (begin < range.begin) rest.push_back({begin, range.begin});
    begin = range.end;
  }
  if (begin < size) rest.push_back({begin, size});
  return rest;
}

/// The end of the template's own text that begins at `begin`.
size_t end_of_template_text(const jinja::Text& text, size_t begin) {
  size_t run_begin = 0;
  for (const jinja::Run& run : text.runs()) {
    if (run.end > begin && run.origin != jinja::template_origin) return std::max(begin, run_begin);
    run_begin = run.end;
  }
  return text.size();
}

ordered_json first_messages(const ordered_json& messages, size_t count) {
  return ordered_json(messages.begin(), messages.begin() + static_cast<ptrdiff_t>(count));
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, std::string name, std::map<std::string, std::string> special_tokens,
                           std::string_view tool_use)
    : name_(std::move(name)), special_tokens_(std::move(special_tokens)) {
  if (!source.empty() || tool_use.empty()) template_.emplace(source, name_);
  std::string parts(checksum(source));
  if (!tool_use.empty()) {
    tool_use_.emplace(tool_use, name_ + " tool_use");
    parts += "tool_use" + checksum(tool_use);
  }
  for (const auto& [variable, token] : special_tokens_) parts += checksum(variable) + checksum(token);
  hash_ = checksum(parts);
}

const jinja::Template& ChatTemplate::template_for(const ordered_json& tools) const {
  if (tool_use_ && !tools.is_null()) return *tool_use_;
  if (!template_) throw_user_error("{}: is for chats with `tools` alone, and this one has none", name_);
  return *template_;
}

jinja::Text ChatTemplate::render(const ordered_json& messages, const RenderOptions& options) const {
  return render_with(template_for(options.tools), messages, options);
}

jinja::Text ChatTemplate::render_with(const jinja::Template& chosen, const ordered_json& messages, const RenderOptions& options) const {
  std::vector<jinja::Value> list;
  for (const ordered_json& message : messages) {
    list.push_back(message_value(message, static_cast<jinja::Origin>(list.size()) + 1));
  }
  jinja::Variables variables = {{"messages", jinja::Value::list(std::move(list))},
                                {"tools", jinja::from_json(options.tools, tools_origin)},
                                {"documents", jinja::None{}},
                                {"add_generation_prompt", options.add_generation_prompt}};
  for (const auto& [name, token] : special_tokens_) variables.emplace_back(name, jinja::Value::text(token));
  return chosen.render(variables, options.now);
}

TrainingText ChatTemplate::for_training(const ordered_json& messages, const ordered_json& tools,
                                        const TextEncoder& encoder, bool whole) const {
  TrainingText result;
  result.text = render(messages, {false, tools, std::nullopt});
  std::vector<ByteRange> written, excluded;
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool is_assistant = messages[i].value("role", "") == "assistant";
    const bool is_excluded = messages[i].contains("weight") && messages[i]["weight"] == 0;
    if (whole ? !is_excluded : !is_assistant || is_excluded) continue;
    std::vector<ByteRange>& ranges = is_excluded ? excluded : written;
    ByteRange range = is_assistant ? learned_range(messages, i, tools, result.text, encoder)
                                   : range_of(result.text, static_cast<jinja::Origin>(i) + 1);
    if (!ranges.empty()) range.begin = std::max(range.begin, ranges.back().end);
    if (range.begin < range.end) ranges.push_back(range);
  }
  result.learned = whole ? complement(excluded, result.text.size()) : std::move(written);
  return result;
}

bool ChatTemplate::renders_as(const std::string& text, const jinja::Template& chosen, const ordered_json& messages,
                              const ordered_json& tools) const {
  try {
    return render_with(chosen, messages, {false, tools, std::nullopt}).bytes() == text;
  } catch (const UserError&) {
    return false;
  }
}

LeftOut ChatTemplate::left_out(const ordered_json& messages, const ordered_json& tools) const {
  const auto holds = [](const ordered_json& list) { return !list.is_null() && !list.empty(); };
  const jinja::Template& chosen = template_for(tools);
  LeftOut found;
  std::optional<std::string> text;
  const auto whole = [&]() -> const std::string& {
    if (!text) text = render(messages, {false, tools, std::nullopt}).bytes();
    return *text;
  };
  for (size_t i = 0; i < messages.size() && !found.tool_calls; ++i) {
    if (!messages[i].contains("tool_calls") || !holds(messages[i]["tool_calls"])) continue;
    ordered_json without = messages;
    without[i].erase("tool_calls");
    found.tool_calls = renders_as(whole(), chosen, without, tools);
  }
  if (holds(tools)) found.tools = renders_as(whole(), chosen, messages, nullptr);
  return found;
}

ByteRange ChatTemplate::learned_range(const ordered_json& messages, size_t index, const ordered_json& tools,
                                      const jinja::Text& whole, const TextEncoder& encoder) const {
  const ByteRange own = range_of(whole, static_cast<jinja::Origin>(index) + 1);
  const bool has_content = own.begin < own.end;

  std::optional<size_t> prompt_end;
  try {
    const jinja::Text prompt = render(first_messages(messages, index), {true, tools, std::nullopt});
    const bool fits = whole.bytes().starts_with(prompt.bytes()) && (!has_content || prompt.size() <= own.begin);
    if (fits) prompt_end = prompt.size();
  } catch (const UserError&) {  // the template refuses an unfinished chat: the message's own bytes decide
  }
  if (!prompt_end && !has_content) {
    throw_user_error("{}: messages[{}] does not appear in the rendered text, so it cannot be learned", template_for(tools).name(), index);
  }
  ByteRange range;
  range.begin = prompt_end.value_or(own.begin);

  const size_t content_end = has_content ? own.end : range.begin;
  std::optional<size_t> turn_end;
  if (index + 1 == messages.size()) {
    turn_end = whole.size();
  } else {
    try {
      const jinja::Text turn = render(first_messages(messages, index + 1), {false, tools, std::nullopt});
      if (whole.bytes().starts_with(turn.bytes()) && turn.size() >= content_end) turn_end = turn.size();
    } catch (const UserError&) {  // as above
    }
  }
  const size_t limit = std::min(turn_end.value_or(whole.size()), end_of_template_text(whole, content_end));
  const std::vector<SpecialMatch> closing =
      encoder.find_special(std::string_view(whole.bytes()).substr(content_end, limit - content_end));
  if (!closing.empty()) {
    range.end = content_end + (turn_end ? closing.back() : closing.front()).end;
  } else {
    range.end = turn_end ? limit : content_end;
  }
  return range;
}

}  // namespace cotune
