#include "base/path_passes_through.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

namespace cotune {
namespace {

namespace fs = std::filesystem;

class LeadsThrough : public ::testing::Test {
 protected:
  LeadsThrough() : root(fs::canonical(fs::temp_directory_path()) / ("cotune-leads-through-" + std::to_string(::getpid()))) {
    fs::remove_all(root);
    fs::create_directories(root / "run" / "jobs" / "a");
    fs::create_directories(root / "elsewhere");
  }
  ~LeadsThrough() override { fs::remove_all(root); }

  bool found(const fs::path& path) const { return path_passes_through(root / path, {root / "run" / "sweeps", root / "run" / "jobs"}); }

  fs::path root;
};

TEST_F(LeadsThrough, APlaceByTheNamesOfAPath) {
  for (const char* path : {"run/jobs", "run/jobs/a", "run/jobs/a/that/is/not/there", "elsewhere/../run/jobs/", "run/sweeps/x"}) EXPECT_TRUE(found(path)) << path;
  for (const char* path : {"run", "run/jobs-of-before", "run/jobs/../other", "elsewhere/jobs", "none"}) EXPECT_FALSE(found(path)) << path;
}

TEST_F(LeadsThrough, APlaceByLinks) {
  fs::create_directory_symlink(root / "run", root / "latest");
  EXPECT_TRUE(found("latest/jobs/a"));
  EXPECT_FALSE(found("latest/other"));
  fs::create_directory_symlink("../run/jobs/a", root / "elsewhere" / "mine");
  EXPECT_TRUE(found("elsewhere/mine"));
  EXPECT_TRUE(found("elsewhere/mine/file"));
}

TEST_F(LeadsThrough, ALinkThatLiesThere) {
  fs::create_directory_symlink(root / "elsewhere", root / "run" / "jobs" / "link");
  fs::create_directory_symlink("run/jobs/link", root / "chain");
  EXPECT_TRUE(found("run/jobs/link/file"));
  EXPECT_TRUE(found("chain/file"));
  EXPECT_FALSE(found("elsewhere/file"));
}

TEST_F(LeadsThrough, APlaceThatIsALinkAndNotWhatThatLinkNames) {
  fs::remove_all(root / "run" / "jobs");
  fs::create_directory_symlink(root / "elsewhere", root / "run" / "jobs");
  EXPECT_TRUE(found("run/jobs/file"));
  EXPECT_FALSE(found("elsewhere/file"));
}

TEST_F(LeadsThrough, NothingByLinksThatNameEachOther) {
  fs::create_symlink("b", root / "a");
  fs::create_symlink("a", root / "b");
  EXPECT_FALSE(found("a/file"));
}

}  // namespace
}  // namespace cotune
