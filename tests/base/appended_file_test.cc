#include "base/appended_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"

namespace cotune {
namespace {

TEST(AppendedFile, BeginsEmptyOrGoesOn) {
  const auto path = std::filesystem::temp_directory_path() / ("cotune-appended-" + std::to_string(::getpid()));
  { AppendedFile(path, false).write("old"); }
  {
    AppendedFile file(path, false);
    file.write("one\n");
    EXPECT_EQ(read_file(path), "one\n");  // at once
    file.sync();
  }
  { AppendedFile(path, true).write("two\n"); }
  EXPECT_EQ(read_file(path), "one\ntwo\n");
  std::filesystem::remove(path);
}

TEST(AppendedFile, ThatCannotBeWrittenSaysWhich) {
  EXPECT_THROW(AppendedFile("/nowhere/at/all", false), SystemError);
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP();
  AppendedFile full("/dev/full", true);
  EXPECT_THROW(full.write("x"), SystemError);
}

}  // namespace
}  // namespace cotune
