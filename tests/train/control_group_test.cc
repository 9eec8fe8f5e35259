// Memory limits of control groups as kernels and container engines lay them out, below a folder in place of `/`.
#include "train/control_group.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <limits>

namespace cotune::testing {
namespace {

namespace fs = std::filesystem;

constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();

class ControlGroup : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(root_); }
  void TearDown() override { fs::remove_all(root_); }

  void put(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  void put_version2(const std::string& group, const std::string& limit, int64_t usage) {
    put(group + "/memory.max", limit + "\n");
    put(group + "/memory.current", std::to_string(usage) + "\n");
  }
  void put_version1(const std::string& group, int64_t limit, int64_t usage) {
    put(group + "/memory.limit_in_bytes", std::to_string(limit) + "\n");
    put(group + "/memory.usage_in_bytes", std::to_string(usage) + "\n");
  }
  int64_t allowance() const { return control_group_allowance_bytes(root_); }

  const fs::path root_ = fs::temp_directory_path() / ("cotune-control-group-" + std::to_string(::getpid()));
};

TEST_F(ControlGroup, ThatIsNotThereSetsNoLimit) {
  EXPECT_EQ(allowance(), unlimited);
  put("proc/self/cgroup", "0::/user.slice\n");
  EXPECT_EQ(allowance(), unlimited);
  put("proc/self/cgroup", "no such line\n\n12:memory\n");
  EXPECT_EQ(allowance(), unlimited);
}

TEST_F(ControlGroup, OfVersion2IsFoundByTheProcessesOwnPath) {
  put("proc/self/cgroup", "0::/system.slice/cotune.service\n");
  put_version2("sys/fs/cgroup/system.slice/cotune.service", "1000", 300);
  EXPECT_EQ(allowance(), 700);
  put_version2("sys/fs/cgroup/system.slice/other.service", "10", 9);
  EXPECT_EQ(allowance(), 700);
}

TEST_F(ControlGroup, OfVersion2IsBoundByEveryGroupAbove) {
  put("proc/self/cgroup", "0::/a/b/c\n");
  put_version2("sys/fs/cgroup/a/b/c", "max", 100);
  EXPECT_EQ(allowance(), unlimited);
  put_version2("sys/fs/cgroup/a/b", "5000", 1000);
  EXPECT_EQ(allowance(), 4000);
  put_version2("sys/fs/cgroup/a", "4500", 1500);
  EXPECT_EQ(allowance(), 3000);
  put_version2("sys/fs/cgroup/a/b/c", "1100", 100);
  EXPECT_EQ(allowance(), 1000);
}

TEST_F(ControlGroup, OfAContainerIsTheMountedRoot) {
  for (const char* path : {"/", "/docker/0123abcd", "/../../kubepods/pod1"}) {
    put("proc/self/cgroup", std::string("0::") + path + "\n");
    put_version2("sys/fs/cgroup", "2000", 500);
    EXPECT_EQ(allowance(), 1500) << path;
  }
}

TEST_F(ControlGroup, OfVersion1IsThatOfTheMemoryController) {
  put("proc/self/cgroup", "11:cpu,cpuacct:/cpu\n7:memory:/docker/job\n1:name=systemd:/docker/job\n0::/system.slice\n");
  put_version1("sys/fs/cgroup/memory", 9223372036854771712, 1 << 20);  // what the kernel calls no limit
  EXPECT_GT(allowance(), int64_t{1} << 60);
  put_version1("sys/fs/cgroup/memory/docker", 8000, 1000);
  EXPECT_EQ(allowance(), 7000);
  put_version1("sys/fs/cgroup/memory/docker/job", 3000, 500);
  EXPECT_EQ(allowance(), 2500);
  put_version2("sys/fs/cgroup/unified/system.slice", "1200", 200);
  EXPECT_EQ(allowance(), 1000);
}

TEST_F(ControlGroup, CountsPagesOfFilesThatCanBeDroppedAsFree) {
  put("proc/self/cgroup", "0::/job\n");
  put_version2("sys/fs/cgroup/job", "1000", 900);
  put("sys/fs/cgroup/job/memory.stat", "anon 200\nactive_file 50\ninactive_file 600\n");
  EXPECT_EQ(allowance(), 700);
  put("proc/self/cgroup", "4:memory:/job\n");
  put_version1("sys/fs/cgroup/memory/job", 1000, 900);
  put("sys/fs/cgroup/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 100\n");
  EXPECT_EQ(allowance(), 200);
}

TEST_F(ControlGroup, ThatIsOverItsLimitAllowsNothing) {
  put("proc/self/cgroup", "0::/job\n");
  put_version2("sys/fs/cgroup/job", "1000", 1500);
  EXPECT_EQ(allowance(), 0);
}

}  // namespace
}  // namespace cotune::testing
