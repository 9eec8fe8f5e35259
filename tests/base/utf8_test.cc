#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace cotune {
namespace {

TEST(Utf8, IllFormedBytesBecomeOneReplacementCharacterPerMaximalSubpart) {
  EXPECT_EQ(replace_invalid_utf8("a\xF0\x9F\x91z"), "a\uFFFDz");                   // truncated, then ASCII
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x91"), "\uFFFD");                       // truncated at the end
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");           // a surrogate
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xE0\x80\xAF"), "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD");  // overlong
  EXPECT_EQ(replace_invalid_utf8("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // above U+10FFFF
  EXPECT_EQ(replace_invalid_utf8("\xFF\xC3\xA9"), "\uFFFDé");
}

TEST(Utf8, IncompleteSuffixCountsOnlyWhatMoreBytesCouldComplete) {
  EXPECT_EQ(incomplete_utf8_suffix(""), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("aé"), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("a\xC3"), 1u);
  EXPECT_EQ(incomplete_utf8_suffix("\xE4\xBD"), 2u);
  EXPECT_EQ(incomplete_utf8_suffix("\xF0\x9F\x91"), 3u);
  EXPECT_EQ(incomplete_utf8_suffix("\xED\xA0"), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("\x80\x80"), 0u);
}

TEST(Utf8, CodePointsRoundTripForwardsAndBackwards) {
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

}  // namespace
}  // namespace cotune
