#include "data/records/jsonl.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>

#include "base/json_mistake.h"
#include "base/utf8.h"

namespace cotune {
namespace {

constexpr int max_nesting = 64;
constexpr size_t max_members = 10'000;  ///< of one object: every look-up goes through them

/// Throws JsonError at the bracket that opens level max_nesting + 1, and at the colon of an object's member max_members + 1. What is not
/// JSON may pass, as far as it stands within these limits up to its first mistake.
void check_size(std::string_view line) {
  std::array<size_t, max_nesting + 1> members{};  // by depth
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > max_nesting) throw JsonError(i + 1, fmt::format("JSON nested deeper than {} levels", max_nesting));
      members[static_cast<size_t>(depth)] = 0;
    } else if (c == ']' || c == '}') {
      if (--depth < 0) return;
    } else if (c == ':' && depth > 0 && ++members[static_cast<size_t>(depth)] > max_members) {
      throw JsonError(i + 1, fmt::format("found an object of more than {0} members; accepted: at most {0}", max_members));
    }
  }
}

/// The code unit of an escape `\uXXXX` that begins there; -1 when none does.
int32_t unit_escaped_at(std::string_view json, size_t begin) {
  uint16_t unit = 0;
  if (json.size() < begin + 6 || json.substr(begin, 2) != "\\u") return -1;
  const char *first = json.data() + begin + 2, *last = first + 4;
  const auto [end, error] = std::from_chars(first, last, unit, 16);
  return error == std::errc{} && end == last ? unit : -1;
}

constexpr bool is_between(int32_t unit, int32_t low, int32_t high) {
  return low <= unit && unit <= high;
}

/// The text with escapes of one half of a surrogate pair as those of U+FFFD; nothing where there are none.
std::optional<std::string> replace_lone_surrogates(std::string_view json) {
  std::optional<std::string> replaced;
  for (size_t i = json.find('\\'); i != json.npos; i = json.find('\\', i)) {
    const int32_t unit = unit_escaped_at(json, i);
    const bool is_pair = is_between(unit, 0xD800, 0xDBFF) && is_between(unit_escaped_at(json, i + 6), 0xDC00, 0xDFFF);
    if (!is_pair && is_between(unit, 0xD800, 0xDFFF)) {
      if (!replaced) replaced = json;
      replaced->replace(i + 2, 4, "FFFD");
    }
    i += is_pair ? 12 : unit >= 0 ? 6 : 2;
  }
  return replaced;
}

}  // namespace

bool JsonlReader::read_line() {
  text_.clear();
  too_long_ = false;
  bool any = false;
  while (true) {
    if (at_ == end_) {
      stream_.read(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
      at_ = 0;
      end_ = static_cast<size_t>(stream_.gcount());
      if (end_ == 0) break;
    }
    any = true;
    const char* begin = buffer_.data() + at_;
    const auto* newline = static_cast<const char*>(std::memchr(begin, '\n', end_ - at_));
    const size_t size = newline ? static_cast<size_t>(newline - begin) : end_ - at_;
    const size_t kept = std::min(size, max_line_bytes - text_.size());
    too_long_ = too_long_ || kept < size;
    text_.append(begin, kept);
    at_ += size;
    if (newline) {
      ++at_;
      break;
    }
  }
  if (any) ++line_;
  return any;
}

bool JsonlReader::next() {
  while (read_line()) {
    if (line_ == 1 && text_.starts_with(byte_order_mark)) text_.erase(0, byte_order_mark.size());
    if (text_.ends_with('\r')) text_.pop_back();
    if (text_.find_first_not_of(" \t\r") == std::string::npos) continue;
    repaired_ = !is_valid_utf8(text_);
    if (repaired_) text_ = replace_invalid_utf8(text_);
    return true;
  }
  return false;
}

JsonError::JsonError(size_t column, const std::string& reason)
    : std::runtime_error(column > 0 ? fmt::format("column {}: {}", column, reason) : reason), column_(column), reason_(reason) {}

constexpr std::string_view object_hint = "; an object stands on one line (JSONL), and `jq -c .` makes lines of such as have several";

nlohmann::ordered_json parse_json_line(std::string_view line, bool* is_repaired) {
  check_size(line);
  const std::optional<std::string> repaired = replace_lone_surrogates(line);
  if (repaired && is_repaired != nullptr) *is_repaired = true;
  try {
    return nlohmann::ordered_json::parse(repaired ? std::string_view(*repaired) : line);
  } catch (const nlohmann::json::parse_error& error) {
    const bool only_opens = line.starts_with('{') && line.find_first_not_of(" \t\r", 1) == std::string_view::npos;
    throw JsonError(error.byte, fmt::format("not JSON: {}{}", json_reason(error), only_opens ? object_hint : ""));
  } catch (const nlohmann::json::out_of_range& error) {
    throw JsonError(0, fmt::format("not JSON: {}", json_reason(error)));
  }
}

}  // namespace cotune
