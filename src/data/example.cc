#include "data/example.h"

#include "base/error.h"
#include "base/utf8.h"
#include "base/visible_text.h"

namespace cotune {
namespace {

std::string printable(const std::string& bytes) { return visible_text(replace_invalid_utf8(bytes)); }

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
