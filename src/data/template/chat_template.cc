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

/// The end of the last bytes up to `limit` that came from the message.
size_t end_of_message(const jinja::Text& text, size_t index, size_t limit) {
  size_t end = 0;
  for (const jinja::Run& run : text.runs()) {
    if (run.end > limit) break;
    if (static_cast<size_t>(run.origin) == index + 1) end = run.end;
  }
  return end;
}

/// Where the generation prompt of messages[0, index) is not the beginning of the whole text, for a template writes earlier messages differently once
/// others follow: the end, in the whole text, of what the prompt has behind their last bytes, as far as it stands there too, to the last line's or
/// special token's end. own: of the messages in the whole text.
std::optional<size_t> end_of_moved_prompt(const jinja::Text& prompt, size_t index, const std::vector<ByteRange>& own, const jinja::Text& whole,
                                          const TextEncoder& encoder) {
  const std::vector<ByteRange> before = ranges_of_messages(prompt, index);
  const auto last = std::ranges::max_element(before, {}, &ByteRange::end);
  if (last == before.end() || last->end == 0) return std::nullopt;
  const ByteRange& moved = own[static_cast<size_t>(last - before.begin())];
  if (moved.end == 0) return std::nullopt;
  const std::string_view tail = std::string_view(prompt.bytes()).substr(last->end), rest = std::string_view(whole.bytes()).substr(moved.end);
  const auto differs = std::ranges::mismatch(tail, rest).in1;
  auto common = static_cast<size_t>(differs - tail.begin());
  if (common < tail.size()) {
    size_t whole_part = tail.substr(0, common).rfind('\n') + 1;  // 0 where there is none
    for (const SpecialMatch& token : encoder.find_special(tail)) {
      if (token.is_special && token.end <= common) whole_part = std::max(whole_part, token.end);
    }
    common = whole_part;
  }
  const size_t end = moved.end + common;
  return common > 0 && end <= own[index].begin ? std::optional(end) : std::nullopt;
}

/// own: the bytes of the messages in the whole text; message `index` is the assistant's.
ByteRange learned_range(ChatRenderings& renderings, size_t index, const std::vector<ByteRange>& all, const jinja::Text& whole,
                        const TextEncoder& encoder) {
  const ByteRange& own = all[index];
  const bool has_content = own.begin < own.end;

  std::optional<size_t> prompt_end;
  try {
    const jinja::Text prompt = renderings.first(index, true);
    const bool fits = whole.bytes().starts_with(prompt.bytes()) && (!has_content || prompt.size() <= own.begin);
    if (fits) {
      prompt_end = prompt.size();
    } else if (has_content) {
      prompt_end = end_of_moved_prompt(prompt, index, all, whole, encoder);
    }
  } catch (const jinja::StepsSpent&) {
    throw;
  } catch (const UserError&) {  // the template refuses an unfinished chat: the message's own bytes decide
  }
  if (!prompt_end && !has_content) {
    throw_user_error("{}: messages[{}] does not appear in the rendered text, so it cannot be learned", renderings.template_name(), index);
  }
  ByteRange range;
  range.begin = prompt_end.value_or(own.begin);

  std::optional<size_t> turn_end;
  if (index + 1 == all.size()) {
    turn_end = whole.size();
  } else {
    try {
      const jinja::Text turn = renderings.first(index + 1, false);
      if (whole.bytes().starts_with(turn.bytes()) && turn.size() >= (has_content ? own.begin + 1 : range.begin)) turn_end = turn.size();
    } catch (const jinja::StepsSpent&) {
      throw;
    } catch (const UserError&) {  // as above
    }
  }
  size_t content_end = range.begin;
  if (has_content) {
    // What a template writes of it in later turns is not the model's to write.
    const bool is_followed = index + 1 < all.size() && all[index + 1].begin > own.begin;
    content_end = end_of_message(whole, index, turn_end.value_or(is_followed ? all[index + 1].begin : whole.size()));
  }
  const size_t limit = std::min(turn_end.value_or(whole.size()), end_of_template_text(whole, content_end));
  const std::vector<SpecialMatch> closing =
      encoder.find_special(std::string_view(whole.bytes()).substr(content_end, limit - content_end));
  if (!closing.empty()) {
    // Where the turn's end is not known: the first token that can be one, and not one that content may have, such as </tool_call>.
    const auto first = std::ranges::find(closing, true, &SpecialMatch::is_special);
    range.end = content_end + (turn_end ? closing.back() : first != closing.end() ? *first : closing.front()).end;
  } else {
    range.end = turn_end ? limit : content_end;
  }
  return range;
}

/// `strftime_now is defined`: the template has a date of its own for where it is not.
bool asks_whether_there_is_a_date(std::string_view source) {
  constexpr std::string_view name = "strftime_now";
  for (size_t at = source.find(name); at != std::string_view::npos; at = source.find(name, at + 1)) {
    const size_t next = source.find_first_not_of(" \t\r\n", at + name.size());
    if (next != std::string_view::npos && source.substr(next).starts_with("is ")) return true;
  }
  return false;
}

/// That of templates which name one (Llama 3.1's).
std::tm usual_date() {
  std::tm date{};
  date.tm_year = 2024 - 1900;
  date.tm_mon = 6;
  date.tm_mday = 26;
  date.tm_wday = 5;
  date.tm_yday = 207;
  return date;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, std::string name, std::map<std::string, std::string> special_tokens,
                           std::string_view tool_use, const ChatLimits& limits)
    : name_(std::move(name)), special_tokens_(std::move(special_tokens)), limits_(limits) {
  if (!source.empty() || tool_use.empty()) template_.emplace(source, name_);
  has_date_ = asks_whether_there_is_a_date(source);
  tool_use_has_date_ = asks_whether_there_is_a_date(tool_use);
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

ChatRenderings ChatTemplate::renderings_of(const ordered_json& messages, const ordered_json& tools, std::optional<std::tm> now) const {
  const jinja::Template& chosen = template_for(tools);
  const bool has_own_date = tool_use_ && &chosen == &*tool_use_ ? tool_use_has_date_ : has_date_;
  if (!now && !has_own_date) now = usual_date();
  return ChatRenderings(chosen, special_tokens_, messages, tools, limits_, now);
}

jinja::Text ChatTemplate::render(const ordered_json& messages, const RenderOptions& options) const {
  return renderings_of(messages, options.tools, options.now).first(messages.size(), options.add_generation_prompt);
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
    ByteRange range = is_assistant ? learned_range(renderings, i, own, result.text, encoder) : own[i];
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
