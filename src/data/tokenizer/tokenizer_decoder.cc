#include "data/tokenizer/tokenizer_decoder.h"

#include "base/utf8.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/tokenizer_normalizer.h"

namespace cotune {
namespace {

/// The bytes that a byte-level token stands for; a token with another character in it stands for itself.
std::string bytes_of(std::string_view token) {
  std::string out;
  for (size_t position = 0; position < token.size();) {
    const int byte = character_to_byte(next_code_point(token, position));
    if (byte < 0) return std::string(token);
    out += static_cast<char>(byte);
  }
  return out;
}

int hexadecimal_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

/// The byte of <0xHH>, or -1.
int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const int high = hexadecimal_digit(token[3]), low = hexadecimal_digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string with_replacements(const DecoderRules& rules, std::string_view token) {
  std::string text(token);
  for (const auto& [pattern, content] : rules.replaces) {
    text = replace_all(text, pattern, content);
    check_rewritten_size(token.size(), text.size());
  }
  return text;
}

}  // namespace

std::string bytes_of_token(const DecoderRules& rules, std::string_view token) {
  if (rules.byte_level) return bytes_of(token);
  std::string text = with_replacements(rules, token);
  if (!rules.metaspace.empty()) text = replace_all(text, rules.metaspace, " ");
  const int byte = rules.byte_fallback ? fallback_byte(text) : -1;
  return byte < 0 ? text : std::string(1, static_cast<char>(byte));
}

std::string StreamingDecoder::take_complete() {
  const size_t keep = incomplete_utf8_suffix(pending_);
  std::string out = replace_invalid_utf8(std::string_view(pending_).substr(0, pending_.size() - keep));
  pending_.erase(0, pending_.size() - keep);
  return out;
}

void StreamingDecoder::append_fallback_run(std::string& out) {
  if (is_valid_utf8(fallback_run_)) {
    out += fallback_run_;
  } else {
    for (size_t i = 0; i < fallback_run_.size(); ++i) out += replacement_character;
  }
  fallback_run_.clear();
}

std::string StreamingDecoder::strip(std::string text) {
  size_t position = 0;
  while (stripping_ && position < text.size()) {
    size_t behind = position;
    if (stripped_ == rules_->strip_count || next_code_point(text, behind) != rules_->strip_character) {
      stripping_ = false;
    } else {
      position = behind;
      ++stripped_;
    }
  }
  return text.substr(position);
}

std::string StreamingDecoder::add(std::string_view token) {
  const bool is_first = std::exchange(first_, false);
  if (rules_->byte_level) {
    pending_ += bytes_of(token);
    return take_complete();
  }
  std::string text = with_replacements(*rules_, token);
  if (!rules_->metaspace.empty()) {
    text = replace_all(text, rules_->metaspace, is_first && rules_->drop_metaspace_of_first ? "" : " ");
  }
  std::string out;
  if (rules_->byte_fallback) {
    if (const int byte = fallback_byte(text); byte >= 0) {
      fallback_run_ += static_cast<char>(byte);
      return out;
    }
    append_fallback_run(out);
  }
  if (rules_->join_with_spaces && !is_first) out += ' ';
  out += text;
  return strip(std::move(out));
}

std::string StreamingDecoder::finish() {
  if (rules_->byte_level) return replace_invalid_utf8(std::exchange(pending_, {}));
  std::string out;
  append_fallback_run(out);
  return strip(std::move(out));
}

}  // namespace cotune
