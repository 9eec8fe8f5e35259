#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>

#include "base/file.h"

namespace cotune {
namespace {

/// Resident kB of the mapping that begins at `address`, as the kernel says; -1 where it does not say.
int64_t resident_kilobytes(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  std::ostringstream begin;
  begin << std::hex << reinterpret_cast<uintptr_t>(address) << '-';
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' ')) inside = line.starts_with(begin.str());
    if (inside && line.starts_with("Rss:")) return std::stoll(line.substr(4));
  }
  return -1;
}

TEST(MappedFile, DroppedPagesLeaveTheProcessAndComeBackWhenRead) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("cotune-mapped-" + std::to_string(::getpid()));
  std::string written(size_t{1} << 20, 'x');
  std::iota(written.begin(), written.end(), '\0');
  write_file_atomically(path, written);
  {
    const MappedFile file(path);
    EXPECT_EQ(file.text(), written);
    if (resident_kilobytes(file.bytes().data()) < 0) GTEST_SKIP() << "no /proc/self/smaps";
    EXPECT_EQ(resident_kilobytes(file.bytes().data()), 1024);
    file.drop_pages();
    EXPECT_EQ(resident_kilobytes(file.bytes().data()), 0);
    EXPECT_EQ(file.text(), written);
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace cotune
