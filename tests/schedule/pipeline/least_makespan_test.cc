#include "schedule/pipeline/least_makespan.h"

#include <gtest/gtest.h>

#include "schedule/pipeline/default_order.h"
#include "schedule/pipeline/exact_search.h"
#include "schedule/pipeline/random_work.h"
#include "schedule/pipeline/simulate.h"
#include "schedule/pipeline/small_work.h"

namespace cotune {
namespace {

TEST(LeastMakespan, IsThatOfLikeMicrobatchesThroughAPipeline) {
  for (const int32_t stages : {1, 2, 4}) {
    for (const int32_t microbatches : {1, 4}) {
      const PipelineWork work = uniform_work(stages, 1, microbatches, 1);
      EXPECT_DOUBLE_EQ(least_makespan_s(work), (microbatches + stages - 1) * 3.0);
      EXPECT_DOUBLE_EQ(least_makespan_s(work, 3), (3 * microbatches + stages - 1) * 3.0);
    }
  }
  EXPECT_EQ(least_makespan_s({.rank_count = 2, .stage_rank = {0, 1}}), 0);
}

TEST(LeastMakespan, IsNotAboveAnyOrderOfRandomWork) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Dice dice(seed);
    const int32_t chunks = seed % 4 == 0 ? 2 : 1;
    const PipelineWork work = random_work(dice, chunks);
    const double least = least_makespan_s(work);
    for (const bool backward_first : {true, false}) {
      const ComputeOrder order = list_schedule(work, PipelineCluster{}, {.backward_first = backward_first});
      EXPECT_LE(least, simulate(work, make_schedule(work, order, {}), {}).makespan_s + 1e-9) << seed;
    }
  }
}

TEST(LeastMakespan, IsNotAboveTheOptimumOfSmallCases) {
  int64_t reached = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Dice dice(seed);
    const PipelineWork work = small_work(dice);
    ExactSearch search(work, {}, choose_order(work).makespan_s);
    const double optimum = search.run(60'000);
    if (!search.is_exact()) continue;
    EXPECT_LE(least_makespan_s(work), optimum + 1e-9) << seed;
    reached += least_makespan_s(work) > optimum - 1e-9 ? 1 : 0;
  }
  EXPECT_GE(reached, 20) << "it is too weak to be of use";
}

}  // namespace
}  // namespace cotune
