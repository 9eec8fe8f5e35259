#include "base/xml_text.h"

#include <cstddef>

#include "base/utf8.h"

namespace cotune {

std::string xml_text(std::string_view text, bool with_lines) {
  const std::string valid = replace_invalid_utf8(text);
  std::string safe;
  for (size_t position = 0; position < valid.size();) {
    const size_t begin = position;
    const char32_t c = next_code_point(valid, position);
    const bool is_kept_line = with_lines && (c == '\n' || c == '\t');
    switch (c) {
      case '&': safe += "&amp;"; break;
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '"': safe += "&quot;"; break;
      case '\'': safe += "&#39;"; break;
      case 0xFFFE:
      case 0xFFFF: safe += replacement_character; break;
      default:
        if ((c < 0x20 && !is_kept_line) || c == 0x7F) {
          safe += ' ';
        } else {
          safe.append(valid, begin, position - begin);
        }
    }
  }
  return safe;
}

}  // namespace cotune
