#include "watch/screen_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace cotune {
namespace {

TEST(ScreenText, CountsColumnsAsATerminalDoes) {
  EXPECT_EQ(columns_of(std::string_view("job")), 3u);
  EXPECT_EQ(columns_of(std::string_view("größe")), 5u);
  EXPECT_EQ(columns_of(std::string_view("日本語")), 6u);
  EXPECT_EQ(columns_of(std::string_view("e\u0301")), 1u);  // a combining accent
  EXPECT_EQ(columns_of(std::string_view("🙂")), 2u);
  EXPECT_EQ(columns_of(std::string_view("▁█…·▶")), 5u);
}

TEST(ScreenText, IsCutAndPaddedToExactlyTheColumns) {
  EXPECT_EQ(in_columns("job", 5), "job  ");
  EXPECT_EQ(in_columns("job", 5, Align::right), "  job");
  EXPECT_EQ(in_columns("a-long-name", 6), "a-lon…");
  EXPECT_EQ(in_columns("a-long-name", 6, Align::left, false), "a-lon.");
  EXPECT_EQ(in_columns("日本語", 4), "日… ");  // half a character does not fit
  for (size_t columns = 0; columns < 12; ++columns) {
    for (const char* text : {"", "x", "日本語日本語", "größe größe", "e\u0301e\u0301e\u0301"}) {
      EXPECT_EQ(columns_of(in_columns(text, columns)), columns) << text;
    }
  }
}

TEST(ScreenText, OfAnyBytesCannotMoveTheCursor) {
  EXPECT_EQ(printable("a\x1b[2Jb\r\n\tc\x7f"), "a [2Jb   c ");
  EXPECT_EQ(printable("\xff\xc3"), "\uFFFD\uFFFD");
  EXPECT_EQ(printable("\u009b" "2J"), " 2J");       // CSI in one character
  EXPECT_EQ(printable("abc\u202Edef"), "abcdef");   // would turn the rest of the line around
}

TEST(ScreenText, WrapsBetweenWordsAndWithinLongOnes) {
  EXPECT_EQ(wrapped("one two three", 7), (std::vector<std::string>{"one two", "three"}));
  EXPECT_EQ(wrapped("/a/very/long/path x", 6), (std::vector<std::string>{"/a/ver", "y/long", "/path", "x"}));
  EXPECT_EQ(wrapped("", 6), (std::vector<std::string>{""}));
  for (const std::string& line : wrapped("日本語日本語 größe and so on", 5)) EXPECT_LE(columns_of(line), 5u);
  EXPECT_EQ(wrapped("one two three four", 7, 2), (std::vector<std::string>{"one two", "three …"}));
  EXPECT_EQ(wrapped("one two three", 7, 2), (std::vector<std::string>{"one two", "three"}));
}

TEST(ScreenText, WrapsNoNumberOfBytesBeforeItsUnit) {
  EXPECT_EQ(wrapped("takes 1.79 GiB, of 1.58 GiB", 24), (std::vector<std::string>{"takes 1.79 GiB, of", "1.58 GiB"}));
  EXPECT_EQ(wrapped("of 800 MiB here", 6), (std::vector<std::string>{"of 800", "MiB", "here"}));
  EXPECT_EQ(wrapped("of 800 rows", 7), (std::vector<std::string>{"of 800", "rows"}));
}

TEST(Sparkline, GoesFromTheLowestToTheHighestValue) {
  const std::vector<double> falling = {4, 3, 2, 1};
  EXPECT_EQ(sparkline(falling, 4), "█▆▃▁");
  EXPECT_EQ(sparkline(falling, 2), "█▁");
  EXPECT_EQ(sparkline(falling, 4, false), "#*-_");
  EXPECT_EQ(sparkline(std::vector<double>{2, 2, 2}, 9), "▁▁▁");
}

TEST(Sparkline, NeedsTwoValuesThatAreFinite) {
  EXPECT_EQ(sparkline(std::vector<double>{}, 9), "");
  EXPECT_EQ(sparkline(std::vector<double>{1, std::nan("")}, 9), "");
  EXPECT_EQ(sparkline(std::vector<double>{1, std::numeric_limits<double>::infinity(), 0}, 9), "█▁");
  EXPECT_EQ(sparkline(std::vector<double>{1, 0}, 0), "");
}

TEST(Bar, IsFullByItsShare) {
  EXPECT_EQ(bar(0.5, 4), "██░░");
  EXPECT_EQ(bar(2, 4), "████");
  EXPECT_EQ(bar(std::nan(""), 2, false), "--");
}

TEST(ScreenText, KeepsBothEndsOfWhatIsTooLong) {
  EXPECT_EQ(with_both_ends("abcdefghij", 10), "abcdefghij");
  EXPECT_EQ(with_both_ends("abcdefghij", 7), "abc…hij");
  EXPECT_EQ(with_both_ends("abcdefghij", 7, false), "abc..ij");
  EXPECT_EQ(with_both_ends("日本語の名前", 7), "日…前");
  for (size_t columns = 0; columns < 12; ++columns) EXPECT_LE(columns_of(with_both_ends("日本語の名前", columns, columns % 2 == 0)), columns);
}

}  // namespace
}  // namespace cotune
