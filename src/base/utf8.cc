#include "base/utf8.h"

#include <cstdint>

namespace cotune {
namespace {

/// Length of the well-formed sequence at the front of `bytes`, or 0; then `bad` is the length of the maximal subpart to
/// replace and `truncated` says that only more bytes are missing.
struct Sequence {
  size_t good = 0;
  size_t bad = 0;
  bool truncated = false;
};

Sequence read_sequence(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {1, 0, false};
  size_t length;
  uint8_t low = 0x80, high = 0xBF;  // accepted second byte
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {0, 1, false};
  }
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {0, i, true};
    if (byte(i) < low || byte(i) > high) return {0, i, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, 0, false};
}

}  // namespace

size_t utf8_sequence_length(std::string_view bytes) { return bytes.empty() ? 0 : read_sequence(bytes).good; }

bool is_valid_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const Sequence sequence = read_sequence(bytes);
    if (sequence.good == 0) return false;
    bytes.remove_prefix(sequence.good);
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Sequence sequence = read_sequence(bytes);
    if (sequence.good != 0) {
      out.append(bytes.substr(0, sequence.good));
      bytes.remove_prefix(sequence.good);
    } else {
      out.append(replacement_character);
      bytes.remove_prefix(sequence.bad);
    }
  }
  return out;
}

size_t incomplete_utf8_suffix(std::string_view bytes) {
  for (size_t length = 1; length <= 3 && length <= bytes.size(); ++length) {
    const Sequence sequence = read_sequence(bytes.substr(bytes.size() - length));
    if (sequence.truncated && sequence.bad == length) return length;
  }
  return 0;
}

char32_t next_code_point(std::string_view utf8, size_t& position) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<uint8_t>(utf8[i])); };
  const char32_t lead = byte(position);
  if (lead < 0x80) {
    position += 1;
    return lead;
  }
  if (lead < 0xE0) {
    position += 2;
    return (lead & 0x1F) << 6 | (byte(position - 1) & 0x3F);
  }
  if (lead < 0xF0) {
    position += 3;
    return (lead & 0x0F) << 12 | (byte(position - 2) & 0x3F) << 6 | (byte(position - 1) & 0x3F);
  }
  position += 4;
  return (lead & 0x07) << 18 | (byte(position - 3) & 0x3F) << 12 | (byte(position - 2) & 0x3F) << 6 |
         (byte(position - 1) & 0x3F);
}

char32_t previous_code_point(std::string_view utf8, size_t& position) {
  do {
    --position;
  } while ((static_cast<uint8_t>(utf8[position]) & 0xC0) == 0x80);
  size_t behind = position;
  return next_code_point(utf8, behind);
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

}  // namespace cotune
