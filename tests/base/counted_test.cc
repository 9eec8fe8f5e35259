#include "base/counted.h"

#include <gtest/gtest.h>

namespace cotune {
namespace {

TEST(Counted, IsOneOrMany) {
  EXPECT_EQ(counted(1, "round"), "1 round");
  EXPECT_EQ(counted(0, "round"), "0 rounds");
  EXPECT_EQ(counted(12, "training round"), "12 training rounds");
  EXPECT_EQ(counted(2, "process", "processes"), "2 processes");
  EXPECT_EQ(counted(1, "process", "processes"), "1 process");
}

}  // namespace
}  // namespace cotune
