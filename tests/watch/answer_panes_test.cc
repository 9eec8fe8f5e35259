#include "watch/answer_panes.h"

#include <gtest/gtest.h>

#include "watch/screen_text.h"

namespace cotune {
namespace {

using Lines = std::vector<std::string>;

TEST(AnswerPanes, StandSideBySideInAWideWindowAndOneUnderAnotherInANarrowOne) {
  const std::vector<AnswerPane> answers = {{"base", "one two\nthree", true}, {"sql", "SELECT", false}};
  EXPECT_EQ(answer_panes(answers, 80, 10, false, true),
            (Lines{"base" + std::string(37, ' ') + "sql …", "one two" + std::string(34, ' ') + "SELECT", "three"}));
  EXPECT_EQ(answer_panes(answers, 40, 10, false, false), (Lines{"base", "one two", "three", "sql ...", "SELECT"}));
}

TEST(AnswerPanes, ShowWhatCameLast) {
  const std::vector<AnswerPane> answers = {{"a", "1\n2\n3\n4", false}, {"b", "5", false}};
  EXPECT_EQ(answer_panes(answers, 20, 6, false, false), (Lines{"a ...", "2", "3", "4", "b ...", "5"}));
}

TEST(AnswerPanes, FitAnyWindow) {
  std::vector<AnswerPane> answers;
  for (int i = 0; i < 7; ++i) answers.push_back({"adapter-" + std::to_string(i), "漢字 words that go on \t and on\n\n\x1b[2J!", i % 2 == 0});
  for (size_t count = 0; count <= answers.size(); ++count) {
    for (size_t columns = 0; columns < 300; columns += 1 + columns / 8) {
      for (size_t rows = 0; rows < 40; ++rows) {
        const Lines lines = answer_panes(std::span(answers).first(count), columns, rows, false, true);
        EXPECT_LE(lines.size(), std::max<size_t>(rows, 1));
        for (const std::string& line : lines) EXPECT_LE(columns_of(line), std::max<size_t>(columns, 2)) << line;
      }
    }
  }
}

}  // namespace
}  // namespace cotune
