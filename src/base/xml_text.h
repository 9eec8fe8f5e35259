#pragma once

#include <string>
#include <string_view>

namespace cotune {

/// Text as XML, SVG and HTML show it, in elements and in quoted attributes: the five characters that mean something there are escaped,
/// control characters become spaces, ill-formed bytes and what XML has no place for (U+FFFE, U+FFFF) U+FFFD. with_lines: line ends and
/// tabs stay.
std::string xml_text(std::string_view text, bool with_lines = false);

}  // namespace cotune
