#include "data/text_encoder.h"

#include <fmt/format.h>

namespace cotune {

TokenizerEncoder::TokenizerEncoder(const Tokenizer& tokenizer, std::optional<int32_t> eos_id)
    : tokenizer_(tokenizer), eos_id_(eos_id) {
  for (int32_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    if (!tokenizer.is_added(id) || tokenizer.token(id).empty()) continue;
    AddedToken token;
    token.id = id;
    token.content = tokenizer.token(id);
    added_.add(token, token.content);
  }
}

std::string TokenizerEncoder::hash() const {
  // Texts of tokenizers that mark spaces were encoded otherwise before.
  return fmt::format("{} {}{}", tokenizer_.hash(), eos_id_.value_or(-1), marks_spaces() ? " whole" : "");
}

std::vector<int32_t> TokenizerEncoder::encode_plain(std::string_view text, bool at_text_start) const {
  return tokenizer_.encode_plain(text, at_text_start);
}

std::vector<SpecialMatch> TokenizerEncoder::find_special(std::string_view text) const {
  std::vector<SpecialMatch> matches;
  for (const AddedTokenMatcher::Stretch& stretch : added_.split(text)) {
    if (stretch.id >= 0) matches.push_back({stretch.begin, stretch.end, stretch.id});
  }
  return matches;
}

}  // namespace cotune
