/// UTF-8. Strings called `utf8` must be valid, others may be any bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cotune {

/// U+FFFD in UTF-8.
inline constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

/// What some editors put before a text.
inline constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

bool is_valid_utf8(std::string_view bytes);

/// Bytes of the well-formed sequence at the front of `bytes`; 0 where there is none.
size_t utf8_sequence_length(std::string_view bytes);

/// `bytes` with every maximal subpart of an ill-formed sequence replaced by one U+FFFD (Unicode 16, section 3.9; the
/// same as Python's errors="replace" and Rust's from_utf8_lossy). Surrogates and overlong forms are ill-formed.
std::string replace_invalid_utf8(std::string_view bytes);

/// Number of bytes at the end of `bytes` (0 to 3) that begin a well-formed sequence which more bytes could complete.
size_t incomplete_utf8_suffix(std::string_view bytes);

/// The code point at `position`, which is moved behind it.
char32_t next_code_point(std::string_view utf8, size_t& position);

/// The code point that ends before `position` > 0, which is moved to its first byte.
char32_t previous_code_point(std::string_view utf8, size_t& position);

void append_utf8(std::string& out, char32_t code_point);

}  // namespace cotune
