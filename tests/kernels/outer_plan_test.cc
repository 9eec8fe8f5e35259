// Gradients of the grouped outer product, dealt to threads in proportion to their cost (MX-26).

#include "kernels/outer_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <numeric>

#include "base/random.h"

namespace cotune::kernels {
namespace {

/// Jobs of ragged rows and ranks: what each gradient costs per panel. Some cost nothing.
std::vector<int64_t> ragged_jobs(uint64_t key, int64_t least, int64_t most_rows, int64_t most_rank) {
  std::vector<int64_t> costs;
  const int64_t count = least + static_cast<int64_t>(uniform_below(key, 0, 30));
  for (int64_t i = 0; i < count; ++i) {
    const auto draw = [&](uint64_t which, int64_t bound) {
      return static_cast<int64_t>(uniform_below(key, 1 + 3 * static_cast<uint64_t>(i) + which, static_cast<uint64_t>(bound)));
    };
    costs.push_back(draw(0, 10) == 0 ? 0 : (1 + draw(1, most_rows)) * (1 + draw(2, most_rank)));
  }
  return costs;
}

TEST(OuterPlan, HoldsEveryPanelOfEveryGradientOnceAndNoPartCostsMoreThanItSays) {
  OuterPlan plan;
  for (uint64_t key = 0; key < 1000; ++key) {
    const std::vector<int64_t> costs = ragged_jobs(key, 0, 1 + static_cast<int64_t>(key % 500), 64);
    const auto panels = static_cast<int64_t>(key % 50);
    const int64_t total = panels * std::accumulate(costs.begin(), costs.end(), int64_t{0});
    for (const int64_t threads : {1, 2, 3, 8, 64}) {
      plan_outer(costs, panels, threads, plan);
      if (total == 0) {
        ASSERT_EQ(plan.parts(), 0);
        continue;
      }
      ASSERT_EQ(plan.parts(), std::min(threads, panels * static_cast<int64_t>(costs.size())));
      std::vector<int> held(static_cast<size_t>(panels) * costs.size());
      for (const OuterShare& share : plan.shares) {
        for (int64_t panel = share.panels.begin; panel < share.panels.end; ++panel) {
          for (int64_t g = share.gradients.begin; g < share.gradients.end; ++g) ++held[static_cast<size_t>(panel) * costs.size() + static_cast<size_t>(g)];
        }
      }
      ASSERT_TRUE(std::ranges::all_of(held, [](int count) { return count == 1; })) << "case " << key << ", " << threads << " threads";
      const double mean = static_cast<double>(total) / static_cast<double>(plan.parts());
      int64_t sum = 0;
      for (int64_t part = 0; part < plan.parts(); ++part) {
        ASSERT_LE(plan.part_begins[static_cast<size_t>(part) + 1] - plan.part_begins[static_cast<size_t>(part)], 3);
        ASSERT_LE(static_cast<double>(plan.load(part, costs)), 1.125 * mean + static_cast<double>(std::ranges::max(costs)) + 1e-6) << "case " << key;
        sum += plan.load(part, costs);
      }
      ASSERT_EQ(sum, total);
    }
  }
}

/// The dearest part over the mean, at most, on 1,000 sets of eight jobs and more of rank up to 64 and up to 512 rows: the ragged cases of the
/// paper's sizes.
void expect_even_loads(std::initializer_list<int64_t> panel_counts, double most_over_mean) {
  OuterPlan plan;
  for (uint64_t key = 0; key < 1000; ++key) {
    const std::vector<int64_t> costs = ragged_jobs(1'000'000 + key, 8, 512, 64);
    for (const int64_t panels : panel_counts) {
      for (const int64_t threads : {2, 4, 8}) {
        plan_outer(costs, panels, threads, plan);
        int64_t total = 0, most = 0;
        for (int64_t part = 0; part < plan.parts(); ++part) {
          total += plan.load(part, costs);
          most = std::max(most, plan.load(part, costs));
        }
        ASSERT_LE(static_cast<double>(most * plan.parts()), most_over_mean * static_cast<double>(total))
            << "case " << key << ", " << panels << " panels, " << threads << " threads";
      }
    }
  }
}

/// Of 576 columns and more: widths that no number of threads divides, and one that all do.
TEST(OuterPlan, LoadsOfManyRaggedJobsAreWithinAQuarterOfTheMean) { expect_even_loads({18, 27, 128}, 1.25); }

/// Of 192 columns, keys and values of SmolLM2.
TEST(OuterPlan, LoadsOfFewPanelsAreWithinAThirdOfTheMean) { expect_even_loads({6}, 1.34); }

TEST(OuterPlan, CutsBetweenPanelsWhereTheyDivideEvenly) {
  OuterPlan plan;
  plan_outer(std::vector<int64_t>{700, 3, 90}, 18, 2, plan);
  ASSERT_EQ(plan.shares.size(), 2u);
  EXPECT_EQ(plan.shares[0].panels, (RowRange{0, 9}));
  EXPECT_EQ(plan.shares[1].panels, (RowRange{9, 18}));
}

}  // namespace
}  // namespace cotune::kernels
