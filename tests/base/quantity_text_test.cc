#include "base/quantity_text.h"

#include <gtest/gtest.h>

namespace cotune {
namespace {

TEST(QuantityText, HasThreeDigitsAndAUnit) {
  EXPECT_EQ(seconds_text(0), "0 s");
  EXPECT_EQ(seconds_text(1.2345), "1.23 s");
  EXPECT_EQ(seconds_text(12.345), "12.3 s");
  EXPECT_EQ(seconds_text(1234.5), "1234 s");
  EXPECT_EQ(seconds_text(0.34), "340 ms");
  EXPECT_EQ(seconds_text(17e-6), "17.0 µs");
  EXPECT_EQ(seconds_text(17e-6, false), "17.0 us");
  EXPECT_EQ(seconds_text(0.9999), "1.00 s");
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1536), "1.50 KiB");
  EXPECT_EQ(bytes_text(20LL << 30), "20.0 GiB");
  EXPECT_EQ(bytes_text((1LL << 30) - 1), "1.00 GiB");
}

TEST(QuantityText, RoundsUpToWhatItShows) {
  for (int64_t bytes = 1; bytes < int64_t{1} << 42; bytes += 1 + bytes / 37) {
    const int64_t up = bytes_rounded_up(bytes);
    EXPECT_GE(up, bytes);
    EXPECT_LE(up, bytes + shown_step(bytes) + 1);
    EXPECT_LE(bytes_rounded_up(up), up + 1) << "what is shown stays";
  }
  EXPECT_EQ(bytes_text(bytes_rounded_up((int64_t{1} << 30) + 1)), "1.01 GiB");
  EXPECT_EQ(bytes_rounded_up(int64_t{20} << 30), int64_t{20} << 30);
  EXPECT_EQ(shown_step(int64_t{545} << 20), 1 << 20);
}

}  // namespace
}  // namespace cotune
