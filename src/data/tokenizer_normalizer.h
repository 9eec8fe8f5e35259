/// Normalizers of tokenizer files: what happens to a stretch of text before it is cut into words.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/tokenizer_regex.h"

namespace cotune {

struct NormalizeNfc {};

/// Puts `text` in front of a stretch that is not empty.
struct NormalizePrepend {
  std::string text;
};

/// Replaces every occurrence of a string (not empty).
struct NormalizeReplaceString {
  std::string pattern;
  std::string content;
};

struct NormalizeReplaceRegex {
  TokenizerRegex pattern;
  std::string content;
};

/// Runs in order.
class TokenizerNormalizer {
 public:
  using Step = std::variant<NormalizeNfc, NormalizePrepend, NormalizeReplaceString, NormalizeReplaceRegex>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }
  std::string apply(std::string_view utf8) const;

 private:
  std::vector<Step> steps_;
};

/// `text` with every occurrence of `pattern` (not empty), from the left, replaced.
std::string replace_all(std::string_view text, std::string_view pattern, std::string_view content);

}  // namespace cotune
