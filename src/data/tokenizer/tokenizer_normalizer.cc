#include "data/tokenizer/tokenizer_normalizer.h"

#include "base/error.h"
#include "data/tokenizer/unicode.h"

namespace cotune {
namespace {

std::string run(const NormalizeNfc&, std::string text) { return normalize_nfc(text); }

std::string run(const NormalizePrepend& step, std::string text) { return text.empty() ? text : step.text + text; }

std::string run(const NormalizeReplaceString& step, std::string text) {
  return replace_all(text, step.pattern, step.content);
}

std::string run(const NormalizeReplaceRegex& step, std::string text) {
  std::vector<RegexPiece> pieces;
  step.pattern.split(text, pieces);
  std::string out;
  for (const RegexPiece& piece : pieces) {
    out += piece.matched ? std::string_view(step.content)
                         : std::string_view(text).substr(piece.begin, piece.end - piece.begin);
  }
  return out;
}

}  // namespace

void check_rewritten_size(size_t original_bytes, size_t bytes) {
  if (bytes > largest_rewritten_size(original_bytes)) {
    throw_user_error("the tokenizer's rules make {} bytes of text grow to {}", original_bytes, bytes);
  }
}

std::string replace_all(std::string_view text, std::string_view pattern, std::string_view content) {
  std::string out;
  out.reserve(text.size());
  size_t from = 0;
  for (size_t at; (at = text.find(pattern, from)) != std::string_view::npos; from = at + pattern.size()) {
    out += text.substr(from, at - from);
    out += content;
  }
  out += text.substr(from);
  return out;
}

std::string TokenizerNormalizer::apply(std::string_view utf8) const {
  std::string text(utf8);
  for (const Step& step : steps_) {
    text = std::visit([&](const auto& s) { return run(s, std::move(text)); }, step);
    check_rewritten_size(utf8.size(), text.size());
  }
  return text;
}

}  // namespace cotune
