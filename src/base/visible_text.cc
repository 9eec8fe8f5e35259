#include "base/visible_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "base/utf8.h"

namespace cotune {
std::string visible_text(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t length = utf8_sequence_length(bytes);
    size_t end = 0;
    const char32_t c = length == 0 ? static_cast<uint8_t>(bytes.front()) : next_code_point(bytes, end);
    if (length == 0 || (c < 0x20 && c != '\n' && c != '\t') || c == 0x7F) {
      text += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c >= 0x80 && c < 0xA0) {
      text += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      text += bytes.substr(0, length);
    }
    bytes.remove_prefix(std::max<size_t>(length, 1));
  }
  return text;
}

}  // namespace cotune
