#include "base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace cotune {
namespace {

TEST(Random, PermutationHoldsEveryIndexOnceAndDependsOnTheKeyAlone) {
  std::vector<int64_t> order = permutation(7, 1000);
  EXPECT_EQ(order, permutation(7, 1000));
  EXPECT_NE(order, permutation(8, 1000));
  std::sort(order.begin(), order.end());
  for (int64_t i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(Random, NormalHasTheMomentsOfAStandardNormal) {
  double sum = 0, squares = 0;
  const int count = 100000;
  for (int i = 0; i < count; ++i) {
    const double x = normal(42, static_cast<uint64_t>(i));
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / count, 0.0, 0.02);
  EXPECT_NEAR(squares / count, 1.0, 0.02);
}

TEST(Random, UniformBelowStaysBelow) {
  for (uint64_t i = 0; i < 1000; ++i) EXPECT_LT(uniform_below(3, i, 7), 7u);
}

}  // namespace
}  // namespace cotune
