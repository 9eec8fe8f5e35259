#include "evaluate/answer_match.h"

#include <gtest/gtest.h>

namespace cotune {
namespace {

TEST(AnswerMatch, WhiteSpaceAtBothEndsNeverCounts) {
  EXPECT_TRUE(is_match(" positive\n", "positive", {}));
  EXPECT_TRUE(is_match("\u00a0a b\u3000", "a b", {}));
  EXPECT_FALSE(is_match("a  b", "a b", {}));
  EXPECT_FALSE(is_match("Positive", "positive", {}));
  EXPECT_TRUE(is_match("", " \t", {}));
}

TEST(AnswerMatch, CaseAndPunctuationCountUnlessTheyAreToBeIgnored) {
  EXPECT_TRUE(is_match("Positive", "posiTive", {.ignore_case = true}));
  EXPECT_TRUE(is_match("positive.", "po-sitive", {.ignore_punctuation = true}));
  EXPECT_FALSE(is_match("Positive.", "positive", {.ignore_case = true}));
  EXPECT_EQ(comparable_text("\"Yes,\" it IS: 4 €!", {.ignore_case = true, .ignore_punctuation = true}), "yes it is 4 €");
  EXPECT_EQ(comparable_text("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", {.ignore_punctuation = true}), "");
}

}  // namespace
}  // namespace cotune
