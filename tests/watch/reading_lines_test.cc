#include "watch/reading_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cotune {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;

ReadingLines::Time at(double seconds) {
  return ReadingLines::Time{} + std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

struct Shown {
  std::vector<std::string> pieces;
  std::function<void(const std::string&)> write() {
    return [this](const std::string& text) { pieces.push_back(text); };
  }
};

const std::string file = "data/chats.jsonl", other = "data/held_out.jsonl";

TEST(ReadingLine, TellsShareRateAndTimeLeft) {
  EXPECT_EQ(reading_line({file, 0.25, 1234, 1000000}, 10), "tokenizing: 25%, 30s left, 100,000 tokens/s, 1,234 records of data/chats.jsonl");
  EXPECT_EQ(reading_line({file, -1, 999, 5000}, 2), "tokenizing: 2,500 tokens/s, 999 records of data/chats.jsonl");
  EXPECT_EQ(reading_line({file, 0, 0, 0}, 0), "tokenizing: 0%, 0 records of data/chats.jsonl");
}

TEST(ReadingLines, SayNothingOfWhatIsSoonDone) {
  Shown shown;
  {
    ReadingLines lines(80, true, shown.write());
    for (const double second : {0.0, 0.5, 1.9}) lines.show({file, second / 2, 10, 100}, at(second));
  }
  EXPECT_THAT(shown.pieces, IsEmpty());
}

TEST(ReadingLines, AreOneLineOnATerminalThatGoesAtTheEnd) {
  Shown shown;
  {
    ReadingLines lines(40, true, shown.write());
    for (int i = 0; i <= 30; ++i) lines.show({file, i / 100.0, 10, 100}, at(i * 0.1));
  }
  ASSERT_EQ(shown.pieces.size(), 5u);  // four times in the third second, and the end
  for (const std::string& piece : shown.pieces) {
    EXPECT_THAT(piece, testing::StartsWith("\r\x1b[K"));
    EXPECT_EQ(piece.find('\n'), std::string::npos);
  }
  EXPECT_EQ(shown.pieces.front(), "\r\x1b[Ktokenizing: 20%, 8s left, 50 tokens/s,…");
  EXPECT_EQ(shown.pieces.back(), "\r\x1b[K");
}

TEST(ReadingLines, AreCutInAsciiWhereTheTerminalShowsNoMore) {
  Shown shown;
  {
    ReadingLines lines(40, false, shown.write());
    for (const double second : {0.0, 2.0}) lines.show({file, 0.2, 10, 100}, at(second));
  }
  EXPECT_EQ(shown.pieces.front(), "\r\x1b[Ktokenizing: 20%, 8s left, 50 tokens/s,.");
}

TEST(ReadingLines, ComeNowAndThenWhereThereIsNoTerminal) {
  Shown shown;
  {
    ReadingLines lines(0, true, shown.write());
    for (int i = 0; i <= 250; ++i) lines.show({i < 200 ? file : other, -1, i, 10 * i}, at(i * 0.1));
  }
  ASSERT_EQ(shown.pieces.size(), 3u);
  for (const std::string& piece : shown.pieces) EXPECT_THAT(piece, EndsWith("\n"));
  EXPECT_THAT(shown.pieces[1], HasSubstr("data/chats.jsonl"));
  EXPECT_THAT(shown.pieces[2], HasSubstr("data/held_out.jsonl"));
}

}  // namespace
}  // namespace cotune
