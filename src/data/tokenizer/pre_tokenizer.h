/// Pre-tokenizers of tokenizer files: they cut a text into the words that byte-pair encoding never crosses, and may
/// rewrite it (bytes as printable characters, spaces as U+2581).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "data/tokenizer/tokenizer_regex.h"

namespace cotune {

/// A text and the words in it, in order.
struct WordList {
  struct Word {
    size_t begin;
    size_t end;
    bool at_text_start;  ///< begins where the whole input began
  };
  std::string text;
  std::vector<Word> words;

  std::string_view view(const Word& word) const {
    return std::string_view(text).substr(word.begin, word.end - word.begin);
  }
};

/// What becomes of the matches of a pattern: words of their own, gone, joined to a neighbour, or joined to each other.
enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

struct SplitByRegex {
  TokenizerRegex pattern;
  SplitBehavior behavior;
  bool invert;  ///< matches and gaps change places
};

struct SplitByString {
  std::string pattern;  ///< not empty
  SplitBehavior behavior;
  bool invert;
};

/// Characters of category N: each alone, or in runs.
struct SplitDigits {
  bool individual;
};

/// Byte-level BPE (GPT-2): optionally a space in front, optionally GPT-2's expression, then every byte becomes one
/// printable character (byte_to_character).
struct ByteLevelWords {
  bool add_prefix_space;
  bool use_regex;
};

/// SentencePiece's way: spaces become `replacement`, one is put in front, and words begin with it.
struct MetaspaceWords {
  enum class Prepend { always, first_only, never };
  std::string replacement;
  Prepend prepend;
  bool split;
};

/// Runs its steps in order; immutable, const use is thread-safe.
class PreTokenizer {
 public:
  using Step = std::variant<SplitByRegex, SplitByString, SplitDigits, ByteLevelWords, MetaspaceWords>;

  template <typename S>
  void add(S step) {
    steps_.emplace_back(std::in_place_type<S>, std::move(step));
  }
  const std::vector<Step>& steps() const { return steps_; }

  /// Words are never empty. Throws UserError when an expression gives up (TokenizerRegex::split)
  /// or the text grows beyond largest_rewritten_size.
  WordList apply(std::string text, bool at_text_start) const;

 private:
  std::vector<Step> steps_;
};

/// GPT-2's printable character for a byte, in UTF-8: '!'..'~', U+00A1..U+00AC and U+00AE..U+00FF stand for themselves,
/// the other bytes, in order, for U+0100 and up.
std::string_view byte_to_character(uint8_t byte);

/// The byte that a character stands for, or -1.
int character_to_byte(char32_t character);

/// GPT-2's expression, also that of ByteLevel with use_regex.
inline constexpr std::string_view gpt2_split =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace cotune
