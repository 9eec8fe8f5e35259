#include "data/example.h"

#include <fmt/format.h>

#include "base/error.h"
#include "data/tokenizer/unicode.h"

namespace cotune {
namespace {

std::string printable(const std::string& bytes) {
  std::string out;
  for (const char c : replace_invalid_utf8(bytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string describe_example(const Example& example, const TextEncoder& encoder, Marking marking) {
  COTUNE_CHECK(example.tokens.size() == example.learned.size());
  const char* const open = marking == Marking::colour ? "\x1b[32m" : "⟦";
  const char* const close = marking == Marking::colour ? "\x1b[0m" : "⟧";
  std::string out;
  for (size_t begin = 0; begin < example.tokens.size();) {
    const bool learned = example.learned[begin] != 0;
    std::string bytes;
    size_t end = begin;
    for (; end < example.tokens.size() && (example.learned[end] != 0) == learned; ++end) {
      bytes += encoder.token_bytes(example.tokens[end]);
    }
    out += learned ? open + printable(bytes) + close : printable(bytes);
    begin = end;
  }
  return out;
}

}  // namespace cotune
