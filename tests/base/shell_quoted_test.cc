#include "base/shell_quoted.h"

#include <gtest/gtest.h>

namespace cotune {
namespace {

TEST(ShellQuoted, LeavesPlainWordsAndQuotesOthers) {
  EXPECT_EQ(shell_quoted("/data/runs/latest-2.1"), "/data/runs/latest-2.1");
  EXPECT_EQ(shell_quoted(""), "''");
  EXPECT_EQ(shell_quoted("/data/my runs/$1"), "'/data/my runs/$1'");
  EXPECT_EQ(shell_quoted("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_quoted("~/runs"), "'~/runs'");
  EXPECT_EQ(shell_quoted("läufe"), "'läufe'");
}

}  // namespace
}  // namespace cotune
