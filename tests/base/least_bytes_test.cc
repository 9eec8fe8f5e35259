#include "base/least_bytes.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "base/quantity_text.h"

namespace cotune {
namespace {

TEST(LeastBytes, AreEnoughAndAStepLessIsNot) {
  for (const int64_t needed : {int64_t{1001}, int64_t{1} << 20, int64_t{123456789}, int64_t{999} << 10}) {
    int64_t calls = 0;
    const std::optional<int64_t> found = least_bytes(1000, [&](int64_t bytes) {
      ++calls;
      return bytes >= needed;
    });
    if (needed > 1025 * 1000) {
      EXPECT_EQ(found, std::nullopt);
      continue;
    }
    ASSERT_TRUE(found.has_value()) << needed;
    EXPECT_GE(*found, needed);
    EXPECT_LT(*found - shown_step(*found), needed);
    EXPECT_LE(calls, 24);
  }
}

}  // namespace
}  // namespace cotune
