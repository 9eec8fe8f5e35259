/// Python's view of text: code points, white space, letter case and number formats, as templates written for Python
/// expect them. Text is valid UTF-8; a stray byte counts as one code point.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cotune::jinja {

struct CodePoint {
  char32_t value = 0;
  size_t size = 1;  ///< bytes
};

/// The code point at byte `position`, which is below text.size().
CodePoint code_point_at(std::string_view text, size_t position);
void append_utf8(std::string& out, char32_t value);

/// Byte offsets of the code points of the text, and its size as last entry.
std::vector<size_t> code_point_offsets(std::string_view text);
size_t count_code_points(std::string_view text);
/// The text, or the first so many bytes of a longer one and "…"; no code point is cut.
std::string shortened(std::string_view text, size_t most_bytes);

/// str.isspace of one code point.
bool is_python_space(char32_t value);
/// Byte range left by str.strip() on either side.
size_t skip_space_left(std::string_view text);
size_t skip_space_right(std::string_view text);

/// Letter case of ASCII, Latin-1, Greek and Cyrillic letters; other code points stay as they are.
char32_t to_upper(char32_t value);
char32_t to_lower(char32_t value);

/// repr(float): the shortest digits that read back equal, in Python's notation (1.0, 1e-05, inf).
std::string python_float(double value);
/// repr(str): single quotes unless the text holds them and no double quotes; controls escaped.
std::string python_repr(std::string_view text);

}  // namespace cotune::jinja
