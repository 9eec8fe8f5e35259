#include "base/visible_text.h"

#include <gtest/gtest.h>

namespace cotune {
namespace {

TEST(VisibleText, KeepsTextAsItIs) {
  for (const char* text : {"", "a b\tc\nd", "größer 日本 🙂", "\u00A0"}) EXPECT_EQ(visible_text(text), text);
}

TEST(VisibleText, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(visible_text("no\x1b[2Jne\r\x7f"), R"(no\x1b[2Jne\x0d\x7f)");
  EXPECT_EQ(visible_text("a\u009b2Jb\u0080\u009F"), R"(a\u009b2Jb\u0080\u009f)");
  EXPECT_EQ(visible_text(std::string_view("\0", 1)), R"(\x00)");
}

TEST(VisibleText, EscapesBytesThatAreNoText) {
  EXPECT_EQ(visible_text("a\x9b" "2J\xff"), R"(a\x9b2J\xff)");
  EXPECT_EQ(visible_text("\xe6\x97"), R"(\xe6\x97)") << "half a character";
  EXPECT_EQ(visible_text("\xed\xa0\x80"), R"(\xed\xa0\x80)") << "a surrogate";
}

}  // namespace
}  // namespace cotune
