#include "data/tokenizer/unicode.h"

#include <gtest/gtest.h>

namespace cotune {
namespace {

TEST(Unicode, IllFormedBytesBecomeOneReplacementCharacterPerMaximalSubpart) {
  EXPECT_EQ(replace_invalid_utf8("a\xF0\x9F\x91z"), "a\uFFFDz");                   // truncated, then ASCII
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x91"), "\uFFFD");                       // truncated at the end
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");           // a surrogate
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xE0\x80\xAF"), "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD");  // overlong
  EXPECT_EQ(replace_invalid_utf8("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // above U+10FFFF
  EXPECT_EQ(replace_invalid_utf8("\xFF\xC3\xA9"), "\uFFFDé");
}

TEST(Unicode, IncompleteSuffixCountsOnlyWhatMoreBytesCouldComplete) {
  EXPECT_EQ(incomplete_utf8_suffix(""), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("aé"), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("a\xC3"), 1u);
  EXPECT_EQ(incomplete_utf8_suffix("\xE4\xBD"), 2u);
  EXPECT_EQ(incomplete_utf8_suffix("\xF0\x9F\x91"), 3u);
  EXPECT_EQ(incomplete_utf8_suffix("\xED\xA0"), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("\x80\x80"), 0u);
}

TEST(Unicode, CodePointsRoundTripForwardsAndBackwards) {
  for (char32_t c = 1; c < 0x110000; c += 37) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    ASSERT_TRUE(is_valid_utf8(text));
    size_t position = 0;
    ASSERT_EQ(next_code_point(text, position), c);
    ASSERT_EQ(position, text.size());
    ASSERT_EQ(previous_code_point(text, position), c);
    ASSERT_EQ(position, 0u);
  }
}

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
