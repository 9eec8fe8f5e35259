// Arbitrary bytes as tokenizer.json: only UserError may come out, whatever the file holds.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "data/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static constexpr std::string_view fuzzed_text =
      "Hello, it's 2024! <|im_start|>  \n\n e\xCC\x81 \xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x91\x8D\xF0\x9F\x8F\xBD \xFF <0x41>aaaaaaaa";
  try {
    const auto tokenizer =
        cotune::Tokenizer::from_json({reinterpret_cast<const char*>(data), size}, "tokenizer.json");
    const auto ids = tokenizer.encode(fuzzed_text, true);
    tokenizer.encode_plain(fuzzed_text);
    tokenizer.decode(ids);
    tokenizer.decode(ids, true);
  } catch (const cotune::UserError&) {
  }
  return 0;
}
