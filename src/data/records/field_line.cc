#include "data/records/field_line.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace cotune {
namespace {

/// Of a field's name behind a key: `[2].role` of `messages[2].role` behind `messages`; nothing where it does not begin with the key.
std::optional<std::string_view> behind(std::string_view field, std::string_view key) {
  if (field.starts_with('.')) field.remove_prefix(1);
  if (!field.starts_with(key)) return std::nullopt;
  field.remove_prefix(key.size());
  if (!field.empty() && field.front() != '.' && field.front() != '[') return std::nullopt;
  return field;
}

/// A place in a text, moved over values.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  size_t find(std::string_view field) {
    skip_space();
    const size_t here = at_;
    std::optional<std::string_view> rest;
    if (field.empty() || at_ >= text_.size()) return here;
    if (text_[at_] == '{') rest = enter_object(field);
    if (text_[at_] == '[') rest = enter_list(field);
    return rest ? find(*rest) : here;
  }

 private:
  char next() const { return at_ < text_.size() ? text_[at_] : '}'; }
  void skip_space() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }

  /// To the value of the key that the field begins with.
  std::optional<std::string_view> enter_object(std::string_view field) {
    ++at_;
    for (skip_space(); next() == '"'; skip_space()) {
      const std::string key = string();
      skip_space();
      ++at_;  // the colon
      if (const auto rest = behind(field, key)) return rest;
      skip_value();
      skip_space();
      if (next() == ',') ++at_;
    }
    return std::nullopt;
  }

  /// To the value of the number in brackets that the field begins with.
  std::optional<std::string_view> enter_list(std::string_view field) {
    size_t index = 0;
    const char* const end = field.data() + field.size();
    const auto [stop, error] = std::from_chars(field.data() + std::min<size_t>(1, field.size()), end, index);
    if (field.front() != '[' || error != std::errc() || stop == end || *stop != ']') return std::nullopt;
    ++at_;
    for (; index > 0; --index) {
      skip_value();
      skip_space();
      if (next() != ',') return std::nullopt;
      ++at_;
    }
    return field.substr(static_cast<size_t>(stop - field.data()) + 1);
  }

  std::string string() {
    const size_t begin = at_;
    skip_value();
    const auto value = nlohmann::json::parse(text_.substr(begin, at_ - begin), nullptr, false);
    return value.is_string() ? value.get<std::string>() : "";
  }

  void skip_value() {
    size_t depth = 0;
    bool in_string = false;
    skip_space();
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (in_string) {
        if (c == '\\') ++at_;
        if (c == '"') in_string = false;
        if (c == '"' && depth == 0) break;
        continue;
      }
      if (depth == 0 && (c == ',' || c == '}' || c == ']')) return;
      if (c == '"') in_string = true;
      if (c == '{' || c == '[') ++depth;
      if ((c == '}' || c == ']') && --depth == 0) break;
    }
    at_ = std::min(at_ + 1, text_.size());
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

int field_line(std::string_view json, std::string_view field) {
  const size_t place = Cursor(json).find(field);
  return static_cast<int>(1 + std::ranges::count(json.substr(0, place), '\n'));
}

}  // namespace cotune
