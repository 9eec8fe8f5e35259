/// Tables behind data/tokenizer/unicode.h and data/tokenizer/tokenizer_regex.h; written by scripts/reference/unicode_tables.py.
#pragma once

#include <cstdint>
#include <span>

namespace cotune::unicode_tables {

struct CodePointRange {
  char32_t first, last;
};

struct CategoryAddition {
  char32_t first, last;
  const char* category;  ///< two letters, for example "Lo"
};

struct CombiningRange {
  char32_t first, last;
  uint8_t combining_class;
};

struct CanonicalPair {
  char32_t first, second, composite;
};

extern const std::span<const CategoryAddition> category_additions;
extern const std::span<const CodePointRange> word;
extern const std::span<const CodePointRange> numeric;
extern const std::span<const CombiningRange> combining_classes;
extern const std::span<const CanonicalPair> decompositions;
extern const std::span<const CanonicalPair> compositions;

}  // namespace cotune::unicode_tables
