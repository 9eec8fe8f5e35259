#include "data/tokenizer/unicode.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "data/tokenizer/unicode_tables.h"

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
constexpr char32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTrails = 0x11A7;
constexpr char32_t kLeadCount = 19, kVowelCount = 21, kTrailCount = 28;
constexpr char32_t kSyllableCount = kLeadCount * kVowelCount * kTrailCount;

struct Mark {
  char32_t code_point;
  uint8_t combining_class;
};

void decompose(char32_t c, std::vector<Mark>& out) {
  if (c >= kSyllables && c < kSyllables + kSyllableCount) {
    const char32_t index = c - kSyllables;
    out.push_back({kLeads + index / (kVowelCount * kTrailCount), 0});
    out.push_back({kVowels + index / kTrailCount % kVowelCount, 0});
    if (index % kTrailCount != 0) out.push_back({kTrails + index % kTrailCount, 0});
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
  if (first >= kLeads && first < kLeads + kLeadCount && second >= kVowels && second < kVowels + kVowelCount) {
    return kSyllables + ((first - kLeads) * kVowelCount + (second - kVowels)) * kTrailCount;
  }
  if (first >= kSyllables && first < kSyllables + kSyllableCount && (first - kSyllables) % kTrailCount == 0 &&
      second > kTrails && second < kTrails + kTrailCount) {
    return first + (second - kTrails);
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
      out.append(kReplacementCharacter);
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
