#include "base/file_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>

#include "base/error.h"
#include "base/file.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

class FileLocks : public ::testing::Test {
 protected:
  ~FileLocks() override { fs::remove(path_); }
  std::string mistake(FileLock::File file) const {
    try {
      FileLock lock(path_, file);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
  fs::path path_ = fs::temp_directory_path() / ("cotune-lock-" + std::to_string(::getpid()));
};

TEST_F(FileLocks, KeepOthersAwayWhileTheyLive) {
  EXPECT_THROW(FileLock(path_, FileLock::File::there), SystemError);
  {
    const FileLock lock(path_, FileLock::File::made_now);
    EXPECT_THAT(mistake(FileLock::File::there), ::testing::EndsWith(": another process is writing it"));
    EXPECT_THAT(mistake(FileLock::File::made_now), ::testing::EndsWith(": another process has made it meanwhile"));
  }
  EXPECT_EQ(mistake(FileLock::File::there), "");
}

TEST_F(FileLocks, AreNoneOfDevices) {
  const FileLock one("/dev/null", FileLock::File::there);
  EXPECT_NO_THROW(FileLock("/dev/null", FileLock::File::there));
}

}  // namespace
}  // namespace cotune
