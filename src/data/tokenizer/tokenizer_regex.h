/// The regular expressions of tokenizer files. They are written for Oniguruma (Ruby syntax, UTF-8), which the Hugging
/// Face `tokenizers` library uses; here they are translated and run by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cotune {

/// The same expression for PCRE2 with PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE. Classes follow Oniguruma 6.9.10
/// (Unicode 16): \s is White_Space, \w Oniguruma's word set, \h a hexadecimal digit, and code points that PCRE2 may not
/// know yet are added to \p{L}, \p{N} and their kin. Throws UserError, naming the construct and its position, for what
/// has no equal: recursion, conditionals, verbs, callouts, class intersection, nested negated classes, \g, \k.
std::string translate_oniguruma(std::string_view pattern);

/// One stretch of a text: matched by the expression, or between two matches.
struct RegexPiece {
  size_t begin;
  size_t end;
  bool matched;
};

/// An immutable compiled expression; const use is thread-safe.
class TokenizerRegex {
 public:
  /// Throws UserError saying what is wrong with the pattern.
  explicit TokenizerRegex(std::string_view oniguruma_pattern);

  /// Cuts the text into matches and the gaps between them, in order, covering all of it. Throws UserError when the
  /// expression needs more steps than 100,000 plus 16 per byte at one place, so that no expression runs for ever.
  void split(std::string_view utf8, std::vector<RegexPiece>& out) const;

  /// As it was given.
  const std::string& pattern() const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace cotune
