/// Whether an answer is the reference (exact match).
#pragma once

#include <string>
#include <string_view>

namespace cotune {

/// What does not count, beside white space at both ends.
struct MatchRules {
  bool ignore_case = false;         ///< of ASCII letters
  bool ignore_punctuation = false;  ///< of ASCII: Python's string.punctuation, wherever it stands
};

/// The text as it is compared: without punctuation, then in lower case, then stripped.
std::string comparable_text(std::string_view text, const MatchRules& rules);

inline bool is_match(std::string_view answer, std::string_view reference, const MatchRules& rules) {
  return comparable_text(answer, rules) == comparable_text(reference, rules);
}

}  // namespace cotune
