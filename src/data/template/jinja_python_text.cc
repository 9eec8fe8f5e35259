#include "data/template/jinja_python_text.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace cotune::jinja {

CodePoint code_point_at(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[position + i]); };
  const unsigned char lead = byte(0);
  const size_t size = lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf8 ? 4 : 1;
  if (size == 1) return {lead, 1};
  if (position + size > text.size()) return {lead, 1};
  char32_t value = lead & (0xff >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {lead, 1};
    value = (value << 6) | (byte(i) & 0x3f);
  }
  return {value, size};
}

void append_utf8(std::string& out, char32_t value) {
  if (value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) value = 0xfffd;
  if (value < 0x80) {
    out += static_cast<char>(value);
  } else if (value < 0x800) {
    out += static_cast<char>(0xc0 | (value >> 6));
    out += static_cast<char>(0x80 | (value & 0x3f));
  } else if (value < 0x10000) {
    out += static_cast<char>(0xe0 | (value >> 12));
    out += static_cast<char>(0x80 | ((value >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (value & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | (value >> 18));
    out += static_cast<char>(0x80 | ((value >> 12) & 0x3f));
    out += static_cast<char>(0x80 | ((value >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (value & 0x3f));
  }
}

std::vector<size_t> code_point_offsets(std::string_view text) {
  std::vector<size_t> offsets;
  offsets.reserve(text.size() + 1);
  for (size_t i = 0; i < text.size(); i += code_point_at(text, i).size) offsets.push_back(i);
  offsets.push_back(text.size());
  return offsets;
}

size_t count_code_points(std::string_view text) {
  size_t count = 0;
  for (size_t i = 0; i < text.size(); i += code_point_at(text, i).size) ++count;
  return count;
}

std::string shortened(std::string_view text, size_t most_bytes) {
  if (text.size() <= most_bytes) return std::string(text);
  size_t end = most_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "…";
}

bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t skip_space_left(std::string_view text) {
  size_t begin = 0;
  while (begin < text.size()) {
    const CodePoint point = code_point_at(text, begin);
    if (!is_python_space(point.value)) break;
    begin += point.size;
  }
  return begin;
}

size_t skip_space_right(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t start = end - 1;
    while (start > 0 && end - start < 4 && (static_cast<unsigned char>(text[start]) & 0xc0) == 0x80) --start;
    const CodePoint point = code_point_at(text, start);
    if (start + point.size != end || !is_python_space(point.value)) break;
    end = start;
  }
  return end;
}

char32_t to_upper(char32_t c) {
  if (c >= 'a' && c <= 'z') return c - 32;
  if (c < 0x80) return c;
  if ((c >= 0xe0 && c <= 0xfe && c != 0xf7) || (c >= 0x3b1 && c <= 0x3c9 && c != 0x3c2) ||
      (c >= 0x430 && c <= 0x44f)) {
    return c - 32;
  }
  if (c == 0xff) return 0x178;
  if (c == 0x3c2) return 0x3a3;
  if (c >= 0x450 && c <= 0x45f) return c - 80;
  return c;
}

char32_t to_lower(char32_t c) {
  if (c >= 'A' && c <= 'Z') return c + 32;
  if (c < 0x80) return c;
  if ((c >= 0xc0 && c <= 0xde && c != 0xd7) || (c >= 0x391 && c <= 0x3a9 && c != 0x3a2) ||
      (c >= 0x410 && c <= 0x42f)) {
    return c + 32;
  }
  if (c == 0x178) return 0xff;
  if (c >= 0x400 && c <= 0x40f) return c + 80;
  return c;
}

std::string python_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string scientific(buffer, end);
  const size_t mark = scientific.find('e');
  const int exponent = std::stoi(scientific.substr(mark + 1));
  if (exponent < -4 || exponent >= 16) {
    return fmt::format("{}e{}{:02}", scientific.substr(0, mark), exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  const auto fixed_end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr;
  std::string fixed(buffer, fixed_end);
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  return fixed;
}

std::string python_repr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text, i);
    const char32_t c = point.value;
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\\' || c == static_cast<char32_t>(quote)) {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0xad) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if ((is_python_space(c) && c != ' ') || (c >= 0x200b && c <= 0x200f) || c == 0xfeff) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      out.append(text.substr(i, point.size));
    }
    i += point.size;
  }
  out += quote;
  return out;
}

}  // namespace cotune::jinja
