/// From tokens back to text, one token at a time: the decoders of tokenizer files.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cotune {

/// What a decoder does with each token's text, in this order. The defaults join the texts as they are.
struct DecoderRules {
  bool byte_level = false;  ///< printable characters back to bytes (byte_to_character); excludes the rest
  bool join_with_spaces = false;                              ///< a file without a decoder
  std::vector<std::pair<std::string, std::string>> replaces;  ///< pattern (not empty), content
  std::string metaspace;                ///< becomes a space; "" for none
  bool drop_metaspace_of_first = false;  ///< but vanishes in the first token
  bool byte_fallback = false;  ///< runs of <0xHH> become UTF-8, or one U+FFFD per byte where they are not valid UTF-8
  char32_t strip_character = 0;
  size_t strip_count = 0;  ///< at most so many strip_character vanish from the front of the whole text
};

/// The bytes that a token stands for within a text: its spaces and bytes put back, nothing stripped or joined.
std::string bytes_of_token(const DecoderRules& rules, std::string_view token);

/// Decodes a stream. What add() and finish() return is valid UTF-8, and together the text of all tokens: characters are
/// held back until their last byte is there, and runs of <0xHH> tokens until they end. The rules must outlive it.
class StreamingDecoder {
 public:
  explicit StreamingDecoder(const DecoderRules& rules) : rules_(&rules) {}

  std::string add(std::string_view token);
  /// What was held back; bytes that never became a character are U+FFFD. Nothing may be added afterwards.
  std::string finish();

 private:
  std::string take_complete();
  void append_fallback_run(std::string& out);
  std::string strip(std::string text);

  const DecoderRules* rules_;
  bool first_ = true;
  std::string pending_;       ///< byte_level: bytes that do not make a character yet
  std::string fallback_run_;  ///< byte_fallback: bytes of the current run
  size_t stripped_ = 0;
  bool stripping_ = true;
};

}  // namespace cotune
