// Work of the grouped shrink, dealt to threads in proportion to its cost (MX-26).

#include "kernels/shrink_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"

namespace cotune::kernels {
namespace {

/// Jobs of ragged rows and ranks, with jobs of no rows and factors of no columns among them.
std::vector<ShrinkShape> ragged_jobs(uint64_t key, int64_t least, int64_t most_rows, uint64_t most_panels) {
  std::vector<ShrinkShape> shapes;
  const int64_t count = least + static_cast<int64_t>(uniform_below(key, 0, 30));
  int64_t row = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto draw = [&](uint64_t which, uint64_t bound) {
      return static_cast<int64_t>(uniform_below(key, 1 + 3 * static_cast<uint64_t>(i) + which, bound));
    };
    const int64_t rows = draw(0, 10) == 0 ? 0 : 1 + draw(1, static_cast<uint64_t>(most_rows));
    shapes.push_back({{row, row + rows}, draw(2, most_panels + 1)});
    row += rows;
  }
  return shapes;
}

struct Tiles {
  int rows, per_strip;
};
constexpr Tiles kernels_tiles[] = {{12, 1}, {16, 2}};

TEST(ShrinkPlan, HoldsEveryRowOnceInTheOrderOfTheGroups) {
  ShrinkPlan plan;
  for (uint64_t key = 0; key < 200; ++key) {
    const std::vector<ShrinkShape> shapes = ragged_jobs(key, 0, 200, 4);
    for (const Tiles tiles : kernels_tiles) {
      plan_shrink(shapes, tiles.rows, tiles.per_strip, 5, plan);
      std::vector<int64_t> next(shapes.size());
      for (size_t g = 0; g < shapes.size(); ++g) next[g] = shapes[g].rows.begin;
      int64_t last_group = 0;
      for (const ShrinkStrip& strip : plan.strips) {
        const auto group = static_cast<size_t>(strip.group);
        EXPECT_GE(strip.group, last_group);
        last_group = strip.group;
        EXPECT_EQ(strip.row, next[group]);
        EXPECT_GE(strip.height[0], 1);
        EXPECT_LE(std::max(strip.height[0], strip.height[1]), tiles.rows);
        EXPECT_GE(strip.height[1], 0);
        EXPECT_EQ(strip.cost, (strip.height[0] + strip.height[1]) * shapes[group].row_cost);
        next[group] += strip.height[0] + strip.height[1];
      }
      for (size_t g = 0; g < shapes.size(); ++g) {
        EXPECT_EQ(next[g], shapes[g].row_cost > 0 ? shapes[g].rows.end : shapes[g].rows.begin);
      }
    }
  }
}

TEST(ShrinkPlan, NoPartCostsMoreThanTheMeanAndTheDearestStrip) {
  ShrinkPlan plan;
  for (uint64_t key = 0; key < 1000; ++key) {
    const std::vector<ShrinkShape> shapes =
        ragged_jobs(key, 0, 1 + static_cast<int64_t>(key % 500), 1 + key % 16);
    for (const Tiles tiles : kernels_tiles) {
      for (const int64_t threads : {1, 2, 3, 8, 64}) {
        plan_shrink(shapes, tiles.rows, tiles.per_strip, threads, plan);
        const auto count = static_cast<int64_t>(plan.strips.size());
        ASSERT_EQ(plan.parts(), std::min(threads, count));
        int64_t total = 0, dearest = 0;
        for (const ShrinkStrip& strip : plan.strips) {
          total += strip.cost;
          dearest = std::max(dearest, strip.cost);
        }
        ASSERT_EQ(plan.part_begins.front(), 0);
        ASSERT_EQ(plan.part_begins.back(), count);
        int64_t sum = 0;
        for (int64_t part = 0; part < plan.parts(); ++part) {
          ASSERT_LT(plan.part_begins[static_cast<size_t>(part)],
                    plan.part_begins[static_cast<size_t>(part) + 1]);
          ASSERT_LE(plan.load(part) * plan.parts(), total + dearest * plan.parts()) << "case " << key;
          sum += plan.load(part);
        }
        ASSERT_EQ(sum, total);
      }
    }
  }
}

TEST(ShrinkPlan, LoadsOfManyRaggedJobsAreWithinAQuarterOfTheMean) {
  ShrinkPlan plan;
  for (uint64_t key = 0; key < 1000; ++key) {
    // Eight jobs and more of rank up to 64 and up to 512 rows: the ragged cases of the paper's sizes.
    std::vector<ShrinkShape> shapes = ragged_jobs(1'000'000 + key, 8, 512, 2);
    for (ShrinkShape& shape : shapes) shape.row_cost = std::max<int64_t>(1, shape.row_cost);
    for (const Tiles tiles : kernels_tiles) {
      for (const int64_t threads : {2, 4, 8}) {
        plan_shrink(shapes, tiles.rows, tiles.per_strip, threads, plan);
        int64_t total = 0, most = 0;
        for (int64_t part = 0; part < plan.parts(); ++part) {
          total += plan.load(part);
          most = std::max(most, plan.load(part));
        }
        ASSERT_LE(most * plan.parts() * 4, total * 5) << "case " << key << ", " << threads << " threads";
      }
    }
  }
}

TEST(ShrinkPlan, LoadsOfExpansionsOfUnlikeRanksAreWithinAQuarterOfTheMean) {
  // Dealt as expand_add deals them: jobs of rank 4 to 64 on one site, whose panels are all alike, by panels · (2 · rows of a strip + rank).
  ShrinkPlan plan, by_panels;
  int64_t unfair = 0;
  for (uint64_t key = 0; key < 1000; ++key) {
    std::vector<ShrinkShape> shapes = ragged_jobs(2'000'000 + key, 8, 512, 1);
    const int64_t panels = std::vector<int64_t>{6, 18, 48}[key % 3];
    for (const Tiles tiles : kernels_tiles) {
      std::vector<ShrinkShape> like = shapes;
      for (size_t i = 0; i < shapes.size(); ++i) {
        const auto rank = 4 + static_cast<int64_t>(uniform_below(key, 1000 + i, 61));
        like[i].row_cost = panels;
        shapes[i].row_cost = panels * (2 * tiles.rows * tiles.per_strip + rank);
      }
      for (const int64_t threads : {2, 4, 8}) {
        plan_shrink(shapes, tiles.rows, tiles.per_strip, threads, plan);
        plan_shrink(like, tiles.rows, tiles.per_strip, threads, by_panels);
        ASSERT_EQ(plan.strips.size(), by_panels.strips.size()) << "the strips are the same however they are dealt";
        const auto heaviest_of_mean = [&](const ShrinkPlan& dealt) {  // by what each strip costs
          int64_t total = 0, most = 0;
          for (int64_t part = 0; part < dealt.parts(); ++part) {
            int64_t load = 0;
            for (int64_t i = dealt.part_begins[static_cast<size_t>(part)]; i < dealt.part_begins[static_cast<size_t>(part) + 1]; ++i) {
              load += plan.strips[static_cast<size_t>(i)].cost;
            }
            total += load;
            most = std::max(most, load);
          }
          return static_cast<double>(most * dealt.parts()) / static_cast<double>(total);
        };
        ASSERT_LE(heaviest_of_mean(plan), 1.25) << "case " << key << ", " << threads << " threads";
        unfair += heaviest_of_mean(by_panels) > 1.25 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(unfair, 100) << "dealt by rows and panels alone";
}

TEST(ShrinkPlan, AWideFactorGetsMoreThreadsThanANarrowOne) {
  // 64 rows of rank 512 cost as much as 1,024 rows of rank 32: by rows alone the first thread would have
  // both.
  ShrinkPlan plan;
  plan_shrink(std::vector<ShrinkShape>{{{0, 64}, 16}, {{64, 1088}, 1}}, 16, 2, 2, plan);
  EXPECT_EQ(plan.load(0), plan.load(1));
  EXPECT_EQ(plan.strips[static_cast<size_t>(plan.part_begins[1])].group, 1);
}

TEST(ShrinkPlan, NothingToDoHasNoParts) {
  ShrinkPlan plan;
  plan_shrink(std::vector<ShrinkShape>{{{0, 0}, 3}, {{0, 20}, 0}}, 12, 1, 4, plan);
  EXPECT_TRUE(plan.strips.empty());
  EXPECT_EQ(plan.parts(), 0);
}

}  // namespace
}  // namespace cotune::kernels
