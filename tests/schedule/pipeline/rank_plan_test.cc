#include "schedule/pipeline/rank_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "schedule/pipeline/divided_rounds.h"
#include "schedule/pipeline/gpipe.h"
#include "schedule/random_batches.h"

namespace cotune {
namespace {

double makespan(const StepPlan& plan, const PipelineWork& work, std::vector<PipelineClock> clocks) {
  const MicrobatchGraphs graphs = [&](size_t microbatch, size_t stage) {
    StageGraphs own = some_graphs(plan, microbatch, stage);
    if (lowest_stage(work, work.microbatches[microbatch]) > static_cast<int32_t>(stage)) own.backward.clear();
    return own;
  };
  const PipelineWork merged = launch_clocks(work, clocks, graphs);
  return simulate(merged, make_schedule(merged, gpipe(merged), {}), {}).makespan_s;
}

TEST(InterleavedPlans, TakeThePairsThatAreShortestBucketsAmongThem) {
  std::map<std::string, int> taken;
  for (uint64_t seed = 0; seed < 120; ++seed) {
    Dice dice(seed);
    std::vector<BatchShape> batches = random_round(dice);
    for (BatchShape& batch : batches) {
      for (int64_t& length : batch.row_lengths) length = std::min<int64_t>(length, 512);
    }
    const PipelineLayout layout = pipeline(static_cast<int32_t>(1 + seed % 2), test_layer_count, 2);
    const StepPlan plan = plan_step(batches, {.sharing = Sharing::temporal, .token_budget = 512, .layer_count = test_layer_count});
    RankPlanOptions options{.order = RankOrder::gpipe, .interleave = Interleave::automatic, .graphs = some_graphs};
    const PipelineWork work = work_of({plan}, layout, by_tokens, options);
    const std::map<std::string, std::vector<PipelineClock>> ways = {{"alone", clocks_of(work, 1)},
                                                                    {"as packed", clocks_of(work)},
                                                                    {"few buckets", bucketed_clocks(work, 0.5)},
                                                                    {"more buckets", bucketed_clocks(work, 0.75)}};
    std::map<std::string, double> seconds;
    for (const auto& [name, clocks] : ways) seconds[name] = makespan(plan, work, clocks);
    const auto shortest = [&](bool with_alone) {
      double least = seconds["as packed"];
      for (const auto& [name, each] : seconds) least = with_alone || name != "alone" ? std::min(least, each) : least;
      return least;
    };
    const RankPlan automatic = plan_ranks({plan}, layout, by_tokens, options);
    EXPECT_DOUBLE_EQ(automatic.predicted.makespan_s, shortest(true)) << seed;
    options.interleave = Interleave::always;
    EXPECT_DOUBLE_EQ(plan_ranks({plan}, layout, by_tokens, options).predicted.makespan_s, shortest(false)) << seed;
    for (const auto& [name, clocks] : ways) {
      const bool alike = std::ranges::equal(automatic.clocks, clocks, {}, &PipelineClock::microbatches, &PipelineClock::microbatches);
      taken[name] += alike ? 1 : 0;
    }
  }
  for (const char* name : {"alone", "as packed", "few buckets", "more buckets"}) EXPECT_GT(taken[name], 0) << name;
}

}  // namespace
}  // namespace cotune
