#include "data/tokenizer/unicode.h"

#include <gtest/gtest.h>

namespace cotune {
namespace {

TEST(Unicode, NfcComposesReordersAndTakesApart) {
  EXPECT_EQ(normalize_nfc("e\u0301"), "\u00E9");
  EXPECT_EQ(normalize_nfc("q\u0307\u0323"), "q\u0323\u0307");         // reordered
  EXPECT_EQ(normalize_nfc("a\u0302\u0323"), "\u1EAD");                // both marks, either order
  EXPECT_EQ(normalize_nfc("\u212B\u2126"), "\u00C5\u03A9");           // singletons
  EXPECT_EQ(normalize_nfc("\u0958"), "\u0915\u093C");                 // excluded from composition
  EXPECT_EQ(normalize_nfc("\u1100\u1161\u11A8"), "\uAC01");           // Hangul
  EXPECT_EQ(normalize_nfc("\uAC00\u11A8"), "\uAC01");
  EXPECT_EQ(normalize_nfc("\u1100\u1161\u11A7"), "\uAC00\u11A7");     // not a trailing consonant
  EXPECT_EQ(normalize_nfc("a\u0300\u0315\u0300"), "\u00E0\u0300\u0315");
  EXPECT_EQ(normalize_nfc("\u0301e"), "\u0301e");                     // a mark without a base
  EXPECT_EQ(normalize_nfc(""), "");
}

TEST(Unicode, CategoriesFollowTheReferenceLibrary) {
  EXPECT_TRUE(is_numeric(U'7'));
  EXPECT_TRUE(is_numeric(U'Ⅷ'));
  EXPECT_TRUE(is_numeric(U'²'));
  EXPECT_FALSE(is_numeric(U'x'));
  EXPECT_TRUE(is_word_character(U'_'));
  EXPECT_TRUE(is_word_character(U'é'));
  EXPECT_FALSE(is_word_character(U'-'));
  EXPECT_TRUE(is_whitespace(0x3000));
  EXPECT_FALSE(is_whitespace(0x180E));
  EXPECT_FALSE(is_whitespace(0x200B));
}

}  // namespace
}  // namespace cotune
