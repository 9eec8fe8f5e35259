#include "data/tokenizer/unicode.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/utf8.h"
#include "data/tokenizer/unicode_tables.h"

namespace cotune {
namespace {

bool contains(std::span<const unicode_tables::CodePointRange> ranges, char32_t c) {
  const auto it = std::partition_point(ranges.begin(), ranges.end(), [c](const auto& r) { return r.last < c; });
  return it != ranges.end() && it->first <= c;
}

uint8_t combining_class(char32_t c) {
  const auto& table = unicode_tables::combining_classes;
  const auto it = std::partition_point(table.begin(), table.end(), [c](const auto& r) { return r.last < c; });
  return it != table.end() && it->first <= c ? it->combining_class : 0;
}

// Hangul syllables are composed by arithmetic (Unicode 16, section 3.12).
constexpr char32_t first_syllable = 0xAC00, first_lead = 0x1100, first_vowel = 0x1161, first_trail = 0x11A7;
constexpr char32_t lead_count = 19, vowel_count = 21, trail_count = 28;
constexpr char32_t syllable_count = lead_count * vowel_count * trail_count;

struct Mark {
  char32_t code_point;
  uint8_t combining_class;
};

void decompose(char32_t c, std::vector<Mark>& out) {
  if (c >= first_syllable && c < first_syllable + syllable_count) {
    const char32_t index = c - first_syllable;
    out.push_back({first_lead + index / (vowel_count * trail_count), 0});
    out.push_back({first_vowel + index / trail_count % vowel_count, 0});
    if (index % trail_count != 0) out.push_back({first_trail + index % trail_count, 0});
    return;
  }
  const auto& table = unicode_tables::decompositions;
  const auto it = std::partition_point(table.begin(), table.end(), [c](const auto& r) { return r.composite < c; });
  if (it == table.end() || it->composite != c) {
    out.push_back({c, combining_class(c)});
    return;
  }
  decompose(it->first, out);
  if (it->second != 0) decompose(it->second, out);
}

/// The primary composite of a pair, or 0.
char32_t compose(char32_t first, char32_t second) {
  if (first >= first_lead && first < first_lead + lead_count && second >= first_vowel && second < first_vowel + vowel_count) {
    return first_syllable + ((first - first_lead) * vowel_count + (second - first_vowel)) * trail_count;
  }
  if (first >= first_syllable && first < first_syllable + syllable_count && (first - first_syllable) % trail_count == 0 &&
      second > first_trail && second < first_trail + trail_count) {
    return first + (second - first_trail);
  }
  const auto& table = unicode_tables::compositions;
  const auto it = std::partition_point(table.begin(), table.end(), [&](const auto& r) {
    return r.first != first ? r.first < first : r.second < second;
  });
  return it != table.end() && it->first == first && it->second == second ? it->composite : 0;
}

/// Composes, in place, a run that begins with a starter (or with marks that have none).
void compose_run(std::vector<Mark>& run) {
  size_t kept = 0;
  size_t starter = run.size();  // none yet
  for (const Mark& mark : run) {
    if (starter < kept) {
      const bool adjacent = starter + 1 == kept;
      const bool blocked = !adjacent && run[kept - 1].combining_class >= mark.combining_class;
      if (!blocked) {
        if (const char32_t composite = compose(run[starter].code_point, mark.code_point)) {
          run[starter].code_point = composite;
          continue;
        }
      }
    }
    run[kept] = mark;
    if (mark.combining_class == 0) starter = kept;
    ++kept;
  }
  run.resize(kept);
}

}  // namespace

std::string normalize_nfc(std::string_view utf8) {
  std::string out;
  out.reserve(utf8.size());
  std::vector<Mark> run;  // decomposed; every starter that cannot compose with what follows ends it
  const auto flush = [&] {
    for (size_t i = 0; i < run.size();) {
      size_t end = i;
      while (end < run.size() && run[end].combining_class != 0) ++end;
      std::stable_sort(run.begin() + i, run.begin() + end,
                       [](const Mark& a, const Mark& b) { return a.combining_class < b.combining_class; });
      i = end + 1;
    }
    compose_run(run);
    for (const Mark& mark : run) append_utf8(out, mark.code_point);
    run.clear();
  };
  for (size_t position = 0; position < utf8.size();) {
    // Nothing below U+0300 composes with a character before it.
    if (static_cast<uint8_t>(utf8[position]) < 0x80) {
      flush();
      run.push_back({static_cast<uint8_t>(utf8[position]), 0});
      ++position;
      continue;
    }
    const char32_t c = next_code_point(utf8, position);
    if (c < 0x300) flush();
    decompose(c, run);
  }
  flush();
  return out;
}

bool is_whitespace(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_numeric(char32_t c) { return contains(unicode_tables::numeric, c); }

bool is_word_character(char32_t c) { return contains(unicode_tables::word, c); }

}  // namespace cotune
