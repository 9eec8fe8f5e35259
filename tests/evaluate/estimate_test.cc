#include "evaluate/estimate.h"

#include <gtest/gtest.h>

#include <vector>

namespace cotune {
namespace {

using Values = std::vector<double>;

TEST(Estimate, OfAMeanHasTheSampleStandardError) {
  const Estimate share = mean_of(Values{1, 0, 1, 1});
  EXPECT_DOUBLE_EQ(share.value, 0.75);
  EXPECT_DOUBLE_EQ(share.standard_error, std::sqrt(0.75 * 0.25 * 4 / 3 / 4));  // sqrt(p(1-p)/(n-1))
  EXPECT_TRUE(std::isnan(mean_of(Values{3}).standard_error));
  EXPECT_DOUBLE_EQ(mean_of(Values{3}).value, 3);
  EXPECT_TRUE(std::isnan(mean_of(Values{}).value));
}

TEST(Estimate, OfADifferenceLeavesOutWhatBothHaveInCommon) {
  const Estimate difference = mean_difference(Values{1, 5, 9}, Values{0, 4, 8});
  EXPECT_DOUBLE_EQ(difference.value, 1);
  EXPECT_DOUBLE_EQ(difference.standard_error, 0);
}

TEST(Estimate, OfLossPerTokenWeighsExamplesByTheirTokens) {
  const Estimate loss = ratio_of(Values{2, 9}, Values{1, 3});
  EXPECT_DOUBLE_EQ(loss.value, 11.0 / 4);
  EXPECT_DOUBLE_EQ(loss.standard_error, std::sqrt(2 * (0.75 * 0.75 + 0.75 * 0.75)) / 4);
  EXPECT_DOUBLE_EQ(ratio_of(Values{2, 6}, Values{1, 3}).standard_error, 0);
  EXPECT_DOUBLE_EQ(ratio_difference(Values{2, 9}, Values{1, 6}, Values{1, 3}).value, 1);
  EXPECT_DOUBLE_EQ(exponential_of({0, 0.5}).standard_error, 0.5);
}

}  // namespace
}  // namespace cotune
