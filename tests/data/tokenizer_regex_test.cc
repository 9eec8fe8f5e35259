#include "data/tokenizer/tokenizer_regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace cotune {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> matches(std::string_view pattern, std::string_view text) {
  std::vector<RegexPiece> pieces;
  TokenizerRegex(pattern).split(text, pieces);
  std::vector<std::string> out;
  for (const RegexPiece& p : pieces) {
    if (p.matched) out.emplace_back(text.substr(p.begin, p.end - p.begin));
  }
  return out;
}

std::string refusal(std::string_view pattern) {
  try {
    TokenizerRegex regex(pattern);
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(TokenizerRegex, PiecesCoverTheTextInOrder) {
  std::vector<RegexPiece> pieces;
  TokenizerRegex("b+|x*").split("abbc", pieces);
  size_t end = 0;
  for (const RegexPiece& p : pieces) {
    EXPECT_EQ(p.begin, end);
    EXPECT_LT(p.begin, p.end);
    end = p.end;
  }
  EXPECT_EQ(end, 4u);
}

TEST(TokenizerRegex, RubySyntaxKeepsItsMeaning) {
  EXPECT_THAT(matches(R"(\h+)", "xAf9g"), ElementsAre("Af9")) << "\\h is a hexadecimal digit";
  EXPECT_THAT(matches(R"(a{1,2}+b)", "aaab"), ElementsAre("aaab")) << "a plus behind an interval repeats it";
  EXPECT_THAT(matches(R"(a++b)", "aaab"), ElementsAre("aaab"));
  EXPECT_THAT(matches(R"(^a$)", "a\na"), ElementsAre("a", "a")) << "^ and $ are of lines";
  EXPECT_THAT(matches(R"(a.)", "a\nab"), ElementsAre("ab"));
  EXPECT_THAT(matches(R"([a[b[c]]]+)", "xabcx"), ElementsAre("abc")) << "a class in a class is a union";
  EXPECT_THAT(matches(R"([^(\s|[.,])]+)", "ab.c (d|"), ElementsAre("ab", "c", "d"));
  EXPECT_THAT(matches(R"(a{,2})", "aaa"), ElementsAre("aa", "a"));
  EXPECT_THAT(matches(R"(x{)", "x{"), ElementsAre("x{"));
}

TEST(TokenizerRegex, ClassesKnowTheUnicodeOfTheReferenceLibrary) {
  EXPECT_THAT(matches(R"(\s+)", "a\u180Eb\u3000\u0085c"), ElementsAre("\u3000\u0085")) << "U+180E is no space";
  EXPECT_THAT(matches(R"(\S+)", "a\u180Eb\u3000c"), ElementsAre("a\u180Eb", "c"));
  EXPECT_THAT(matches(R"(\p{L}+)", "\U0002EBF0\U000323AF1"), ElementsAre("\U0002EBF0\U000323AF")) << "Unicode 15.1";
  EXPECT_THAT(matches(R"([^\p{L}]+)", "\U0002EBF0-"), ElementsAre("-"));
  EXPECT_THAT(matches(R"(\P{L}+)", "\U0002EBF0-"), ElementsAre("-"));
  EXPECT_THAT(matches(R"(\p{^L}+)", "\U0002EBF0-"), ElementsAre("-"));
  EXPECT_THAT(matches(R"((?i:'s))", "'S'\u017F"), ElementsAre("'S", "'\u017F"));
}

TEST(TokenizerRegex, WhatHasNoEqualIsRefusedByName) {
  EXPECT_THAT(refusal("(?R)"), HasSubstr("the group (?R) at byte 0 is not supported"));
  EXPECT_THAT(refusal("(*FAIL)"), HasSubstr("a verb"));
  EXPECT_THAT(refusal("[a&&b]"), HasSubstr("a class intersection at byte 2"));
  EXPECT_THAT(refusal("[a[^b]]"), HasSubstr("a negated class inside a class"));
  EXPECT_THAT(refusal(R"((a)\1)"), HasSubstr(R"(the escape \1)"));
  EXPECT_THAT(refusal("(a"), HasSubstr("a group that is never closed"));
  EXPECT_THAT(refusal("[a"), HasSubstr("a class that is never closed"));
  EXPECT_THAT(refusal("a\\"), HasSubstr("a lone backslash"));
  EXPECT_THAT(refusal("*"), HasSubstr("regular expression *"));
  EXPECT_NE(refusal(std::string(30'000, 'a')), "accepted");
  EXPECT_NE(refusal("\xFF"), "accepted");
}

}  // namespace
}  // namespace cotune
