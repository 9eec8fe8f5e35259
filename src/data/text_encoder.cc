#include "data/text_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace cotune {

TokenizerEncoder::TokenizerEncoder(const Tokenizer& tokenizer, std::optional<int32_t> eos_id)
    : tokenizer_(tokenizer), eos_id_(eos_id) {
  for (const AddedToken& token : tokenizer.added_tokens()) {
    if (token.content.empty()) continue;
    added_.add({.id = token.id, .content = token.content}, token.content);
    if (token.lstrip || token.rstrip) strips_[token.id] = {token.lstrip, token.rstrip};
  }
}

std::string TokenizerEncoder::hash() const {
  // Texts of tokenizers that mark spaces were encoded otherwise before, and so were those of tokenizers that have such added tokens.
  const bool has_other =
      std::ranges::any_of(tokenizer_.added_tokens(), [](const AddedToken& token) { return !token.special || token.lstrip || token.rstrip; });
  return fmt::format("{} {}{}{}", tokenizer_.hash(), eos_id_.value_or(-1), marks_spaces() ? " whole" : "", has_other ? " added" : "");
}

std::vector<int32_t> TokenizerEncoder::encode_plain(std::string_view text, bool at_text_start) const {
  return tokenizer_.encode_plain(text, at_text_start);
}

std::string TokenizerEncoder::token_bytes(int32_t id) const {
  return id < tokenizer_.vocabulary_size() ? tokenizer_.token_bytes(id) : fmt::format("<{}>", id);
}

std::vector<SpecialMatch> TokenizerEncoder::find_special(std::string_view text) const {
  std::vector<SpecialMatch> matches;
  for (const AddedTokenMatcher::Stretch& stretch : added_.split(text)) {
    if (stretch.id < 0) continue;
    SpecialMatch& match = matches.emplace_back(SpecialMatch{stretch.begin, stretch.end, stretch.id});
    match.is_special = tokenizer_.is_special(stretch.id);
    if (const auto strips = strips_.find(stretch.id); strips != strips_.end()) std::tie(match.lstrip, match.rstrip) = strips->second;
  }
  return matches;
}

}  // namespace cotune
