#include "plan/deployment/covering_lp.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace cotune {
namespace {

TEST(CoveringLp, SolvesACuttingStockByHand) {
  // Stock of 10 from pieces of 3 (seven) and 4 (five): 2·3 + 4 and 2·4 waste least: 3.5 of the first cover all 3s, with 3.5 4s;
  // the other 1.5 fours cost 0.75.
  CoveringLp lp({7, 5}, 1000);
  lp.add_column(1, {3, 0});
  lp.add_column(1, {0, 2});
  lp.add_column(1, {2, 1});
  lp.solve();
  EXPECT_NEAR(lp.cost(), 4.25, 1e-9);
  EXPECT_NEAR(lp.values()[2], 3.5, 1e-9);
  EXPECT_NEAR(lp.duals()[0], 0.25, 1e-9);
  EXPECT_NEAR(lp.duals()[1], 0.5, 1e-9);
  lp.add_column(1, {1, 2});
  lp.solve();
  EXPECT_NEAR(lp.cost(), 4, 1e-9) << "a third for a piece of either kind";
}

TEST(CoveringLp, EndsWhereDualsAreFeasibleAndCostTheSame) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    uint64_t next = 0;
    const size_t rows = 1 + uniform_below(seed, next++, 8);
    std::vector<double> demands;
    for (size_t r = 0; r < rows; ++r) demands.push_back(static_cast<double>(uniform_below(seed, next++, 5)));
    CoveringLp lp(demands, 1e4);
    std::vector<std::pair<double, std::vector<double>>> columns;
    for (int batch = 0; batch < 3; ++batch) {
      for (int k = 0; k < 12; ++k) {
        std::vector<double> column;
        for (size_t r = 0; r < rows; ++r) column.push_back(static_cast<double>(uniform_below(seed, next++, 4)));
        columns.emplace_back(1 + uniform(seed, next++), column);
        lp.add_column(columns.back().first, column);
      }
      lp.solve();
      double dual = 0;
      for (size_t r = 0; r < rows; ++r) {
        EXPECT_GE(lp.duals()[r], -1e-7) << seed;
        dual += lp.duals()[r] * demands[r];
      }
      EXPECT_NEAR(dual, lp.cost(), 1e-6 * (1 + dual)) << seed;
      for (const auto& [cost, column] : columns) {
        double worth = 0;
        for (size_t r = 0; r < rows; ++r) worth += lp.duals()[r] * column[r];
        EXPECT_LE(worth, cost + 1e-6) << seed;
      }
      for (const double value : lp.values()) EXPECT_GE(value, 0) << seed;
    }
  }
}

}  // namespace
}  // namespace cotune
