#include "data/template/chat_template.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"

namespace cotune {
namespace {

using nlohmann::ordered_json;

/// Of each message the bytes from the first to the last that came from it; empty at 0 when there are none.
std::vector<ByteRange> ranges_of_messages(const jinja::Text& text, size_t count) {
  std::vector<ByteRange> ranges(count);
  size_t begin = 0;
  for (const jinja::Run& run : text.runs()) {
    if (run.origin >= 1 && static_cast<size_t>(run.origin) <= count) {
      ByteRange& range = ranges[static_cast<size_t>(run.origin) - 1];
      if (range.end == 0) range.begin = begin;
      range.end = run.end;
    }
    begin = run.end;
  }
  return ranges;
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
  const auto run = std::upper_bound(text.runs().begin(), text.runs().end(), begin,
                                    [](size_t position, const jinja::Run& other) { return position < other.end; });
  if (run == text.runs().end()) return text.size();
  return run->origin == jinja::template_origin ? run->end : begin;
}

/// own: the bytes of the assistant's message `index` in the whole text.
ByteRange learned_range(ChatRenderings& renderings, size_t index, size_t count, const ByteRange& own, const jinja::Text& whole,
                        const TextEncoder& encoder) {
  const bool has_content = own.begin < own.end;

  std::optional<size_t> prompt_end;
  try {
    const jinja::Text prompt = renderings.first(index, true);
    const bool fits = whole.bytes().starts_with(prompt.bytes()) && (!has_content || prompt.size() <= own.begin);
    if (fits) prompt_end = prompt.size();
  } catch (const jinja::StepsSpent&) {
    throw;
  } catch (const UserError&) {  // the template refuses an unfinished chat: the message's own bytes decide
  }
  if (!prompt_end && !has_content) {
    throw_user_error("{}: messages[{}] does not appear in the rendered text, so it cannot be learned", renderings.template_name(), index);
  }
  ByteRange range;
  range.begin = prompt_end.value_or(own.begin);

  const size_t content_end = has_content ? own.end : range.begin;
  std::optional<size_t> turn_end;
  if (index + 1 == count) {
    turn_end = whole.size();
  } else {
    try {
      const jinja::Text turn = renderings.first(index + 1, false);
      if (whole.bytes().starts_with(turn.bytes()) && turn.size() >= content_end) turn_end = turn.size();
    } catch (const jinja::StepsSpent&) {
      throw;
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

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, std::string name, std::map<std::string, std::string> special_tokens,
                           std::string_view tool_use, const ChatLimits& limits)
    : name_(std::move(name)), special_tokens_(std::move(special_tokens)), limits_(limits) {
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

ChatRenderings ChatTemplate::renderings_of(const ordered_json& messages, const ordered_json& tools) const {
  return ChatRenderings(template_for(tools), special_tokens_, messages, tools, limits_);
}

jinja::Text ChatTemplate::render(const ordered_json& messages, const RenderOptions& options) const {
  return renderings_of(messages, options.tools).first(messages.size(), options.add_generation_prompt, options.now);
}

TrainingText ChatTemplate::for_training(const ordered_json& messages, const ordered_json& tools,
                                        const TextEncoder& encoder, bool whole) const {
  ChatRenderings renderings = renderings_of(messages, tools);
  TrainingText result;
  result.text = renderings.first(messages.size(), false);
  const std::vector<ByteRange> own = ranges_of_messages(result.text, messages.size());
  std::vector<ByteRange> written, excluded;
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool is_assistant = messages[i].value("role", "") == "assistant";
    const bool is_excluded = messages[i].contains("weight") && messages[i]["weight"] == 0;
    if (whole ? !is_excluded : !is_assistant || is_excluded) continue;
    std::vector<ByteRange>& ranges = is_excluded ? excluded : written;
    ByteRange range = is_assistant ? learned_range(renderings, i, messages.size(), own[i], result.text, encoder) : own[i];
    if (!ranges.empty()) range.begin = std::max(range.begin, ranges.back().end);
    if (range.begin < range.end) ranges.push_back(range);
  }
  result.learned = whole ? complement(excluded, result.text.size()) : std::move(written);
  return result;
}

LeftOut ChatTemplate::left_out(const ordered_json& messages, const ordered_json& tools) const {
  const auto holds = [](const ordered_json& list) { return !list.is_null() && !list.empty(); };
  const auto calls = [&](const ordered_json& message) { return message.contains("tool_calls") && holds(message["tool_calls"]); };
  LeftOut found;
  if (!holds(tools) && std::none_of(messages.begin(), messages.end(), calls)) return found;

  ChatRenderings renderings = renderings_of(messages, tools);
  const jinja::Text whole = renderings.first(messages.size(), false);
  const auto is_whole = [&](const auto& render) {
    try {
      return render() == whole;
    } catch (const UserError&) {
      return false;
    }
  };
  if (holds(tools)) found.tools = is_whole([&] { return renderings.without_tools(); });
  for (size_t i = 0; i < messages.size() && !found.tool_calls; ++i) {
    if (!calls(messages[i])) continue;
    ordered_json without = messages[i];
    without.erase("tool_calls");
    found.tool_calls = is_whole([&] { return renderings.with(i, without); });
  }
  return found;
}

}  // namespace cotune
