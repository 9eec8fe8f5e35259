/// The few Unicode properties a tokenizer needs. Strings called `utf8` must be valid UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace cotune {

/// Normalization form C (UAX #15) with the character data of the `tokenizers` library (about Unicode 9: marks and
/// composites of later versions stay as they are, as they do there). Linear in the text, but for runs of combining marks,
/// which are sorted.
std::string normalize_nfc(std::string_view utf8);

/// Property White_Space.
bool is_whitespace(char32_t code_point);
/// General category N.
bool is_numeric(char32_t code_point);
/// \w of UTS #18: letters, marks, decimal digits, connector punctuation.
bool is_word_character(char32_t code_point);

}  // namespace cotune
