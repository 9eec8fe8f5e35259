/// Normalizers of tokenizer files: what happens to a stretch of text before it is cut into words.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "data/tokenizer/tokenizer_regex.h"

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

  template <typename S>
  void add(S step) {
    steps_.emplace_back(std::in_place_type<S>, std::move(step));
  }
  bool empty() const { return steps_.empty(); }
  const std::vector<Step>& steps() const { return steps_; }
  /// Throws UserError when a regular expression gives up, or when the text grows beyond largest_rewritten_size.
  std::string apply(std::string_view utf8) const;

 private:
  std::vector<Step> steps_;
};

/// A damaged or hostile file can make a text grow with every step; nothing real grows this much.
inline size_t largest_rewritten_size(size_t original_bytes) { return 16 * original_bytes + 65'536; }

/// Throws UserError when a text of `original_bytes` became larger than largest_rewritten_size.
void check_rewritten_size(size_t original_bytes, size_t bytes);

/// `text` with every occurrence of `pattern` (not empty), from the left, replaced.
std::string replace_all(std::string_view text, std::string_view pattern, std::string_view content);

}  // namespace cotune
