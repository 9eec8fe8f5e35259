#include "data/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <array>

#include "base/utf8.h"
#include "data/tokenizer/tokenizer_normalizer.h"
#include "data/tokenizer/unicode.h"

namespace cotune {
namespace {

using Pieces = std::vector<RegexPiece>;

/// The pieces that stay words; offsets as in `pieces`. The rules are those of `tokenizers`.
void apply_behavior(SplitBehavior behavior, Pieces& pieces) {
  Pieces out;
  bool previous = false;
  switch (behavior) {
    case SplitBehavior::isolated:
      return;
    case SplitBehavior::removed:
      std::erase_if(pieces, [](const RegexPiece& p) { return p.matched; });
      return;
    case SplitBehavior::contiguous:
      for (const RegexPiece& p : pieces) {
        if (p.matched == previous && !out.empty()) {
          out.back().end = p.end;
        } else {
          out.push_back(p);
        }
        previous = p.matched;
      }
      break;
    case SplitBehavior::merged_with_previous:
      for (const RegexPiece& p : pieces) {
        if (p.matched && !previous && !out.empty()) {
          out.back().end = p.end;
        } else {
          out.push_back(p);
        }
        previous = p.matched;
      }
      break;
    case SplitBehavior::merged_with_next:
      for (auto p = pieces.rbegin(); p != pieces.rend(); ++p) {
        if (p->matched && !previous && !out.empty()) {
          out.back().begin = p->begin;
        } else {
          out.push_back(*p);
        }
        previous = p->matched;
      }
      std::reverse(out.begin(), out.end());
      break;
  }
  pieces = std::move(out);
}

/// Cuts every word of the list: find(view, pieces) gives the pieces of one word.
template <typename Find>
WordList cut(WordList list, SplitBehavior behavior, bool invert, const Find& find) {
  std::vector<WordList::Word> words;
  words.reserve(list.words.size() * 2);
  Pieces pieces;
  for (const WordList::Word& word : list.words) {
    pieces.clear();
    find(list.view(word), pieces);
    if (invert) {
      for (RegexPiece& p : pieces) p.matched = !p.matched;
    }
    apply_behavior(behavior, pieces);
    for (const RegexPiece& p : pieces) {
      words.push_back({word.begin + p.begin, word.begin + p.end, word.at_text_start && p.begin == 0});
    }
  }
  list.words = std::move(words);
  return list;
}

/// Rewrites every word: append(view, word, text) appends the new text.
template <typename Append>
WordList rewrite(const WordList& list, const Append& append) {
  WordList out;
  out.text.reserve(list.text.size() * 2);
  out.words.reserve(list.words.size());
  for (const WordList::Word& word : list.words) {
    const size_t begin = out.text.size();
    append(list.view(word), word, out.text);
    if (out.text.size() > begin) out.words.push_back({begin, out.text.size(), word.at_text_start});
  }
  return out;
}

void find_string(std::string_view text, std::string_view pattern, Pieces& out) {
  size_t from = 0;
  for (size_t at; (at = text.find(pattern, from)) != std::string_view::npos; from = at + pattern.size()) {
    if (at > from) out.push_back({from, at, false});
    out.push_back({at, at + pattern.size(), true});
  }
  if (from < text.size()) out.push_back({from, text.size(), false});
}

void find_digits(std::string_view text, Pieces& out) {
  size_t from = 0;
  for (size_t position = 0; position < text.size();) {
    const size_t begin = position;
    if (!is_numeric(next_code_point(text, position))) continue;
    if (begin > from) out.push_back({from, begin, false});
    out.push_back({begin, position, true});
    from = position;
  }
  if (from < text.size()) out.push_back({from, text.size(), false});
}

WordList run(const SplitByRegex& step, WordList list) {
  return cut(std::move(list), step.behavior, step.invert,
             [&](std::string_view text, Pieces& out) { step.pattern.split(text, out); });
}

WordList run(const SplitByString& step, WordList list) {
  return cut(std::move(list), step.behavior, step.invert,
             [&](std::string_view text, Pieces& out) { find_string(text, step.pattern, out); });
}

WordList run(const SplitDigits& step, WordList list) {
  return cut(std::move(list), step.individual ? SplitBehavior::isolated : SplitBehavior::contiguous, false,
             find_digits);
}

WordList run(const ByteLevelWords& step, WordList list) {
  static const TokenizerRegex gpt2(gpt2_split);
  if (step.add_prefix_space) {
    list = rewrite(list, [](std::string_view text, const WordList::Word&, std::string& out) {
      if (!text.starts_with(' ')) out += ' ';
      out += text;
    });
  }
  if (step.use_regex) {
    list = cut(std::move(list), SplitBehavior::isolated, false,
               [](std::string_view text, Pieces& out) { gpt2.split(text, out); });
  }
  return rewrite(list, [](std::string_view text, const WordList::Word&, std::string& out) {
    for (const char c : text) out += byte_to_character(static_cast<uint8_t>(c));
  });
}

WordList run(const MetaspaceWords& step, WordList list) {
  using Prepend = MetaspaceWords::Prepend;
  list = rewrite(list, [&](std::string_view text, const WordList::Word& word, std::string& out) {
    const std::string replaced = replace_all(text, " ", step.replacement);
    const bool wanted =
        step.prepend == Prepend::always || (step.prepend == Prepend::first_only && word.at_text_start);
    if (wanted && !replaced.starts_with(step.replacement)) out += step.replacement;
    out += replaced;
  });
  if (!step.split) return list;
  return cut(std::move(list), SplitBehavior::merged_with_next, false,
             [&](std::string_view text, Pieces& out) { find_string(text, step.replacement, out); });
}

struct ByteAlphabet {
  std::array<std::string, 256> characters;
  std::array<int, 512> bytes;

  ByteAlphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const char32_t c = printable ? static_cast<char32_t>(b) : next++;
      append_utf8(characters[b], c);
      bytes[c] = b;
    }
  }
};

const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

}  // namespace

std::string_view byte_to_character(uint8_t byte) { return byte_alphabet().characters[byte]; }

int character_to_byte(char32_t character) { return character < 512 ? byte_alphabet().bytes[character] : -1; }

WordList PreTokenizer::apply(std::string text, bool at_text_start) const {
  const size_t original_bytes = text.size();
  WordList list;
  if (!text.empty()) list.words.push_back({0, text.size(), at_text_start});
  list.text = std::move(text);
  for (const Step& step : steps_) {
    list = std::visit([&](const auto& s) { return run(s, std::move(list)); }, step);
    check_rewritten_size(original_bytes, list.text.size());
  }
  return list;
}

}  // namespace cotune
