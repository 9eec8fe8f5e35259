#include "evaluate/answer_match.h"

#include <algorithm>

#include "base/utf8.h"
#include "data/tokenizer/unicode.h"

namespace cotune {
namespace {

bool is_punctuation(char c) { return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~'); }

}  // namespace

std::string comparable_text(std::string_view given, const MatchRules& rules) {
  std::string text = replace_invalid_utf8(given);
  if (rules.ignore_punctuation) std::erase_if(text, is_punctuation);
  if (rules.ignore_case)
    std::ranges::transform(text, text.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  size_t begin = 0, end = text.size();
  for (size_t next = begin; begin < end && is_whitespace(next_code_point(text, next)); begin = next) {
  }
  for (size_t next = end; end > begin && is_whitespace(previous_code_point(text, next)); end = next) {
  }
  return text.substr(begin, end - begin);
}

}  // namespace cotune
