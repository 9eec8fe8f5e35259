#include "watch/footer_lines.h"

#include <gtest/gtest.h>

#include "watch/screen_text.h"

namespace cotune {
namespace {

using Lines = std::vector<std::string>;

const Lines key_texts = {"j k choose", "p pause", "r resume", "c cancel", "q lines instead", "Ctrl-C saves and stops"};

TEST(FooterLines, AreOneLineInAWideWindow) {
  EXPECT_EQ(footer_lines(key_texts, 100, 4), (Lines{"j k choose  p pause  r resume  c cancel  q lines instead  Ctrl-C saves and stops"}));
}

TEST(FooterLines, KeepAKeyAndItsMeaningTogether) {
  EXPECT_EQ(footer_lines(key_texts, 40, 4), (Lines{"j k choose  p pause  r resume  c cancel", "q lines instead  Ctrl-C saves and stops"}));
  EXPECT_EQ(footer_lines(key_texts, 30, 4), (Lines{"j k choose  p pause  r resume", "c cancel  q lines instead", "Ctrl-C saves and stops"}));
}

TEST(FooterLines, OfTooFewKeepWhatMattersMost) {
  EXPECT_EQ(footer_lines(key_texts, 40, 1), (Lines{"q lines instead  Ctrl-C saves and stops"}));
  EXPECT_EQ(footer_lines(key_texts, 30, 1), (Lines{"Ctrl-C saves and stops"}));
  EXPECT_EQ(footer_lines(key_texts, 16, 1), (Lines{"Ctrl-C saves an…"}));
}

TEST(FooterLines, CutATextAtItsEnd) {
  const Lines question = {"cancel sql? y or n; its last step is kept as a checkpoint"};
  EXPECT_EQ(footer_lines(question, 40, 2), (Lines{"cancel sql? y or n; its last step is", "kept as a checkpoint"}));
  EXPECT_EQ(footer_lines(question, 20, 2), (Lines{"cancel sql? y or n;", "its last step is ke…"}));
  EXPECT_EQ(footer_lines({}, 20, 2), Lines{});
}

TEST(FooterLines, FitAnyWindow) {
  for (size_t columns = 2; columns < 100; ++columns) {
    for (size_t most = 1; most < 6; ++most) {
      const Lines lines = footer_lines(key_texts, columns, most);
      ASSERT_LE(lines.size(), most);
      for (const std::string& line : lines) ASSERT_LE(columns_of(line), columns) << line;
    }
  }
}

}  // namespace
}  // namespace cotune
