#include "jobs/memory_size.h"

#include <gtest/gtest.h>

namespace cotune {
namespace {

TEST(MemorySize, ReadsAmountsInBothKindsOfUnits) {
  EXPECT_EQ(parse_memory_size("8GiB")->bytes, int64_t{8} << 30);
  EXPECT_EQ(parse_memory_size("1.5 GiB")->bytes, int64_t{3} << 29);
  EXPECT_EQ(parse_memory_size("512MB")->bytes, 512'000'000);
  EXPECT_EQ(parse_memory_size("8GiB")->of(1), int64_t{8} << 30);
}

TEST(MemorySize, ReadsSharesOfWhatIsFree) {
  EXPECT_EQ(parse_memory_size("60%")->of(1000), 600);
  EXPECT_EQ(parse_memory_size("100%")->of(1000), 1000);
  EXPECT_EQ(parse_memory_size("auto")->of(1000), 800);
}

TEST(MemorySize, RefusesEverythingElse) {
  for (const char* text : {"", "8", "GiB", "8gib", "0%", "101%", "-1GiB", "nan%", "infGiB", "1KiB", "0GiB", "8GiBx",
                           "1e3GiB", "99999999999TiB", " 8GiB", "8  GiB", "%"}) {
    EXPECT_FALSE(parse_memory_size(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace cotune
