#include "schedule/pipeline/rank_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "schedule/pipeline/default_order.h"
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

/// Per rank, of what is between forward and backward.
std::vector<int64_t> peaks_of(const RankPlan& plan) {
  ComputeOrder order(plan.schedule.ranks.size());
  for (size_t rank = 0; rank < order.size(); ++rank) {
    for (const Action& action : plan.schedule.ranks[rank]) {
      if (action.kind == ActionKind::forward) order[rank].push_back({action.microbatch, static_cast<int32_t>(rank), false});
      if (action.kind == ActionKind::backward) order[rank].push_back({action.microbatch, static_cast<int32_t>(rank), true});
    }
  }
  return peak_kept_bytes(plan.work, order);
}

TEST(SpareBytes, LetRanksKeepHalfAsManyMicrobatchesMoreAndNotAByteBeyond) {
  std::map<RankOrder, double> with, without;
  int kept_more = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    Dice dice(mix_key(31, seed));
    const auto stages = static_cast<int32_t>(dice.between(2, 5));
    const int64_t budget = 256 << dice.between(0, 1);
    std::vector<StepPlan> rounds;
    for (int64_t round = 0, count = dice.between(1, 3); round < count; ++round) {
      std::vector<BatchShape> batches = random_round(dice);
      if (seed % 5 != 0) {
        for (BatchShape& batch : batches) {
          for (int64_t& length : batch.row_lengths) length = std::min(length, budget);
        }
      }
      for (BatchShape& batch : batches) batch.step = round;
      rounds.push_back(plan_step(batches, {.sharing = Sharing::temporal, .token_budget = budget, .layer_count = test_layer_count}));
    }
    const PipelineLayout layout = pipeline(stages, test_layer_count);
    for (const RankOrder order : {RankOrder::automatic, RankOrder::lorapp, RankOrder::muxtune, RankOrder::one_f_one_b}) {
      RankPlanOptions options{.order = order, .most_in_flight = stages};
      const PipelineWork work = work_of(rounds, layout, by_tokens, options);
      int64_t dearest = 0, chain = 0;
      bool has_chain = false;
      for (const PipelineUnit& unit : units_of(work)) {
        int64_t bytes = 0;
        for (int32_t m = unit.first; m < unit.first + unit.count; ++m) {
          const int64_t own = work.microbatches[static_cast<size_t>(m)].cost.front().kept_bytes;
          dearest = std::max(dearest, own);
          bytes += own;
        }
        chain = std::max(chain, bytes);
        has_chain = has_chain || unit.count > 1;
      }
      const int64_t least = std::max(stages * dearest, chain);
      for (const int64_t spare : {int64_t{0}, dearest / 2, int64_t{1} << 40}) {
        options.spare_bytes = spare;
        const RankPlan plan = plan_ranks(rounds, layout, by_tokens, options);
        const bool takes_spare = order != RankOrder::one_f_one_b && !has_chain;
        const int64_t most = least + (takes_spare ? std::min(spare, stages / 2 * dearest) : 0);
        for (const int64_t peak : peaks_of(plan)) {
          if (order == RankOrder::one_f_one_b) continue;  // which counts microbatches
          EXPECT_LE(peak, most) << seed << ", spare " << spare;
          kept_more += peak > least ? 1 : 0;
        }
        if (spare == 0) without[order] += plan.predicted.makespan_s;
        if (spare > dearest) with[order] += plan.predicted.makespan_s;
      }
    }
  }
  EXPECT_GT(kept_more, 0);
  EXPECT_LT(with[RankOrder::automatic], 0.99 * without[RankOrder::automatic]);
  EXPECT_LT(with[RankOrder::lorapp], 0.99 * without[RankOrder::lorapp]);
  EXPECT_LT(with[RankOrder::muxtune], 0.99 * without[RankOrder::muxtune]);
  EXPECT_EQ(with[RankOrder::one_f_one_b], without[RankOrder::one_f_one_b]);
}

}  // namespace
}  // namespace cotune
