#include "schedule/pipeline/action_seconds.h"

#include <gtest/gtest.h>

#include "schedule/pipeline/divided_rounds.h"
#include "schedule/random_batches.h"

namespace cotune {
namespace {

constexpr double latency_s = 3, exchange_s = 100;

bool computes(ActionKind kind) { return kind == ActionKind::forward || kind == ActionKind::backward || kind == ActionKind::optimizer_step; }

/// Two jobs with a microbatch each: 100 tokens and 400.
StepPlan two_jobs(bool recompute) {
  const std::vector<BatchShape> batches{{.job = 0, .step = 0, .row_lengths = {100}}, {.job = 1, .step = 0, .row_lengths = {400}}};
  return plan_step(batches, {.sharing = Sharing::temporal, .token_budget = 512, .recompute = recompute, .layer_count = test_layer_count});
}

RankPlan on_two_stages(bool recompute) {
  return plan_ranks({two_jobs(recompute)}, pipeline(2, test_layer_count), by_tokens,
                    {.order = RankOrder::gpipe, .cluster = {.link = {.latency_s = latency_s}}, .bytes_per_token = {8, 8}, .optimizer_s = {7, 9}});
}

TEST(ActionSeconds, AreThoseOfTheActionItselfAndOfWhatItWaitsFor) {
  for (const bool recompute : {false, true}) {
    const RankPlan plan = on_two_stages(recompute);
    for (size_t rank = 0; rank < 2; ++rank) {
      const std::vector<double> seconds = action_seconds(plan, rank, exchange_s);
      ASSERT_EQ(seconds.size(), plan.ranks[rank].size());
      for (size_t i = 0; i < seconds.size(); ++i) {
        const Action& action = plan.ranks[rank][i];
        const double tokens = action.microbatch == 0 ? 100 : 400;
        double expected = 0;
        switch (action.kind) {
          case ActionKind::forward: expected = tokens + (rank == 1 ? latency_s : 0); break;
          case ActionKind::recompute:  // a part of the whole
          case ActionKind::backward: expected = 2 * tokens + (rank == 0 ? latency_s : 0); break;
          case ActionKind::send_activation:
          case ActionKind::send_error: expected = latency_s; break;
          case ActionKind::optimizer_step: expected = (action.job == 0 ? 7 : 9) + exchange_s; break;
          default: break;
        }
        if (action.kind == ActionKind::optimizer_step && rank == 1) expected += latency_s;  // the whole gradient's norm comes from below
        EXPECT_DOUBLE_EQ(seconds[i], expected) << to_json_line(action);
      }
    }
  }
}

TEST(ActionSeconds, AreThoseOfTheScheduleAlsoOfMicrobatchesSideBySide) {
  int64_t of_two = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Dice dice(seed);
    std::vector<BatchShape> batches = random_round(dice);
    for (BatchShape& batch : batches) {
      for (int64_t& length : batch.row_lengths) length = std::min<int64_t>(length, 512);
    }
    const StepPlan round = plan_step(batches, {.sharing = Sharing::temporal, .token_budget = 512, .layer_count = test_layer_count});
    const RankPlan plan = plan_ranks({round}, pipeline(2, test_layer_count, 2), by_tokens,
                                     {.order = RankOrder::gpipe, .interleave = seed % 3 == 0 ? Interleave::never : Interleave::always, .graphs = some_graphs});
    for (const PipelineClock& clock : plan.clocks) of_two += clock.microbatches.size() == 2 ? 1 : 0;
    for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
      const std::vector<double> seconds = action_seconds(plan, rank, 0);
      size_t next = 0;
      for (size_t i = 0; i < seconds.size(); ++i) {
        if (!computes(plan.ranks[rank][i].kind)) continue;
        const SimulatedSpan& span = plan.predicted.ranks[rank].spans.at(next++);
        EXPECT_DOUBLE_EQ(seconds[i], span.end_s - span.start_s) << "seed " << seed << ": " << to_json_line(plan.ranks[rank][i]);
      }
    }
  }
  EXPECT_GT(of_two, 50);
}

TEST(ActionSeconds, AreNoneWhereNothingIsPredicted) {
  RankPlan plan = on_two_stages(false);
  plan.predicted = {};
  EXPECT_EQ(action_seconds(plan, 0, 0), std::vector<double>(plan.ranks[0].size(), 0.0));
}

}  // namespace
}  // namespace cotune
