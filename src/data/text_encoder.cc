#include "data/text_encoder.h"

#include <fmt/format.h>

#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/unicode.h"

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

std::string TokenizerEncoder::hash() const { return fmt::format("{} {}", tokenizer_.hash(), eos_id_.value_or(-1)); }

std::vector<int32_t> TokenizerEncoder::encode_plain(std::string_view text) const {
  return tokenizer_.encode_plain(text);
}

std::vector<SpecialMatch> TokenizerEncoder::find_special(std::string_view text) const {
  std::vector<SpecialMatch> matches;
  for (const AddedTokenMatcher::Stretch& stretch : added_.split(text)) {
    if (stretch.id >= 0) matches.push_back({stretch.begin, stretch.end, stretch.id});
  }
  return matches;
}

std::string TokenizerEncoder::token_bytes(int32_t id) const {
  const std::string& token = tokenizer_.token(id);
  if (tokenizer_.is_added(id)) return token;
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    const int byte = character_to_byte(next_code_point(token, i));
    if (byte < 0) return tokenizer_.decode(std::vector<int32_t>{id});
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

}  // namespace cotune
