#include "data/stop_texts.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/random.h"

namespace cotune {
namespace {

/// What was given out in the end, and whether a stop text was found.
std::pair<std::string, bool> shown(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopTexts scanner(stops);
  std::string text;
  for (const std::string& piece : pieces) text += scanner.add(piece);
  if (!scanner.found()) text += scanner.finish();
  return {text, scanner.found()};
}

TEST(StopTexts, EndAnAnswerAcrossPieces) {
  EXPECT_EQ(shown({"\n\n"}, {"one\n", "two\n", "\nthree"}), std::pair(std::string("one\ntwo"), true));
  EXPECT_EQ(shown({"END"}, {"wait E", "N", "d"}), std::pair(std::string("wait ENd"), false));
  EXPECT_EQ(shown({"abab"}, {"aba", "cabab"}), std::pair(std::string("abac"), true));
  EXPECT_EQ(shown({}, {"any", "thing"}), std::pair(std::string("anything"), false));
  EXPECT_EQ(shown({""}, {"any", "thing"}), std::pair(std::string("anything"), false));
}

TEST(StopTexts, NeverShowAPartOfOne) {
  StopTexts scanner({"</answer>"});
  EXPECT_EQ(scanner.add("yes <"), "yes ");
  EXPECT_EQ(scanner.add("/ans"), "");
  EXPECT_EQ(scanner.add("<b"), "</ans<b");
  EXPECT_EQ(scanner.add("></"), ">");
  EXPECT_EQ(scanner.finish(), "</");
}

TEST(StopTexts, TheOneThatIsCompleteFirstEndsTheAnswerAndOfSeveralThenTheLongest) {
  EXPECT_EQ(shown({"xabc", "ab"}, {"1xabc"}).first, "1x");
  EXPECT_EQ(shown({"b", "ab"}, {"1ab"}).first, "1");
}

TEST(StopTexts, HowAnAnswerIsCutDoesNotMatter) {
  for (uint64_t key = 0; key < 3000; ++key) {
    const auto draw = [&](uint64_t index, uint64_t bound) { return uniform_below(key, index, bound); };
    const auto random_text = [&](uint64_t from, uint64_t length) {
      std::string text;
      for (uint64_t i = 0; i < length; ++i) text += static_cast<char>('a' + draw(from + i, 2));
      return text;
    };
    std::vector<std::string> stops;
    for (uint64_t i = 0; i < 1 + draw(0, 3); ++i) stops.push_back(random_text(100 * (i + 1), 1 + draw(i + 1, 6)));
    const std::string text = random_text(1000, draw(9, 30));
    std::vector<std::string> letters, pieces(1);
    for (size_t i = 0; i < text.size(); ++i) {
      letters.emplace_back(1, text[i]);
      if (draw(2000 + i, 3) == 0) pieces.emplace_back();
      pieces.back() += text[i];
    }
    EXPECT_EQ(shown(stops, pieces), shown(stops, letters)) << text;
    EXPECT_EQ(shown(stops, {text}), shown(stops, letters)) << text;
  }
}

}  // namespace
}  // namespace cotune
