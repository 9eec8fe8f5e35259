#include "schedule/pipeline/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "schedule/pipeline/random_work.h"
#include "schedule/pipeline/verify_pipeline.h"

namespace cotune {
namespace {

PipelineWork without_optimizer_time(PipelineWork work) {
  for (PipelineJob& job : work.jobs) job.optimizer_s = 0;
  return work;
}

TEST(SimulatePipeline, TakesTheTimesOfTheGraphWhereNothingIsInTheWay) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Dice dice(seed);
    const PipelineWork work = without_optimizer_time(random_work(dice, seed % 3 == 0 ? 2 : 1));
    // Links with delay but room for any number of messages.
    const PipelineCluster cluster{.link = {.latency_s = static_cast<double>(dice.between(0, 3)) / 4}};
    for (const NamedOrder& named : all_orders(work, cluster)) {
      const PipelineSimulation simulation =
          simulate(work, make_schedule(work, named.order, cluster), cluster);
      const ComputeTimes times = ComputeGraph(work, cluster).times(named.order).value();
      for (size_t rank = 0; rank < times.size(); ++rank) {
        size_t i = 0;
        for (const SimulatedSpan& span : simulation.ranks[rank].spans) {
          if (span.end_s == span.start_s) continue;  // optimizer steps, and computations without time
          while (times[rank][i].end_s == times[rank][i].start_s) ++i;
          ASSERT_NEAR(span.start_s, times[rank][i].start_s, 1e-4) << named.name << ", seed " << seed;
          ASSERT_NEAR(span.end_s, times[rank][i].end_s, 1e-4) << named.name << ", seed " << seed;
          ++i;
        }
      }
    }
  }
}

TEST(SimulatePipeline, CountsMessagesBytesAndMemoryAsTheProofDoes) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Dice dice(seed);
    const PipelineWork work = random_work(dice, seed % 3 == 0 ? 2 : 1);
    const PipelineCluster cluster = random_cluster(dice);
    const PipelineSchedule schedule = make_schedule(work, lorapp(work, cluster), cluster);
    const PipelineFacts facts = verify(work, schedule);
    const PipelineSimulation simulation = simulate(work, schedule, cluster);
    EXPECT_EQ(simulation.message_count, facts.message_count);
    EXPECT_EQ(simulation.message_bytes, facts.message_bytes);
    EXPECT_EQ(simulation.norm_message_count, facts.norm_message_count);
    for (size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
      const SimulatedRank& result = simulation.ranks[rank];
      ASSERT_FALSE(work.microbatches.empty() && !result.memory.empty());
      if (result.memory.empty()) continue;
      EXPECT_EQ(result.memory.back().bytes, 0) << "everything is freed; seed " << seed;
      EXPECT_GE(result.peak_bytes, facts.peak_bytes[rank]) << "with what waits to be sent; seed " << seed;
      for (const MemorySample& sample : result.memory) ASSERT_GE(sample.bytes, 0) << seed;
    }
  }
}

TEST(SimulatePipeline, RunsRanksAndLinksOneThingAtATime) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Dice dice(seed);
    const PipelineWork work = random_work(dice, seed % 3 == 0 ? 2 : 1);
    const PipelineCluster cluster = random_cluster(dice);
    const PipelineSimulation simulation =
        simulate(work, make_schedule(work, lorapp(work, cluster), cluster), cluster);
    for (const SimulatedRank& rank : simulation.ranks) {
      for (size_t i = 1; i < rank.spans.size(); ++i) {
        ASSERT_GE(rank.spans[i].start_s, rank.spans[i - 1].end_s - 1e-9);
        ASSERT_GT(rank.spans[i].action, rank.spans[i - 1].action);
      }
      EXPECT_LE(rank.spans.empty() ? 0.0 : rank.spans.back().end_s, simulation.makespan_s);
    }
    std::map<std::pair<int32_t, int32_t>, double> free_s;
    for (const SimulatedTransfer& transfer : simulation.transfers) {
      double& free = free_s[{transfer.from, transfer.to}];
      ASSERT_GE(transfer.start_s, free - 1e-9);
      free = transfer.end_s - cluster.link.latency_s;
    }
  }
}

TEST(SimulatePipeline, LorappLeavesNoBubbleFromAsManyAdaptersAsStagesOn) {
  for (const int32_t d : {2, 4, 8}) {
    for (const double ratio : {0.67, 1.0, 1.5, 2.0, 3.0}) {
      const PipelineWork work = uniform_work(d, d, 1, 12, {.forward_s = 1, .backward_s = ratio}, {1000, 1000});
      const PipelineSimulation simulation = simulate(work, make_schedule(work, lorapp(work)));
      EXPECT_NEAR(simulation.idle_share(0.4 * simulation.makespan_s, 0.6 * simulation.makespan_s), 0, 1e-9)
          << d;
      const double fill_and_drain = (d - 1.0) / (12 * d + d - 1);
      EXPECT_NEAR(simulation.bubble_ratio(), fill_and_drain, 0.01) << d << " " << ratio;
    }
  }
}

TEST(SimulatePipeline, OverlapHidesShortHopsWhereAdaptersAreToSpare) {
  // mLoRA, acceptance of ML-11: hops to 0.3 forwards, two adapters more than stages.
  for (const int32_t d : {2, 3, 4}) {
    for (const double hop_s : {0.1, 0.2, 0.3}) {
      const PipelineWork work = uniform_work(d, d + 2, 1, 40);
      const auto makespan_s = [&](const PipelineCluster& cluster) {
        return simulate(work, make_schedule(work, lorapp(work, cluster), cluster), cluster).makespan_s;
      };
      const double without_delay = makespan_s({});
      const double overlapped = makespan_s({.link = {.latency_s = hop_s}});
      EXPECT_GE(without_delay / overlapped, 0.95) << d << " " << hop_s;
      if (d < 3) continue;
      // A middle stage, per step: 2C + 2C + F + B in place of max(C, F) + max(C, B).
      const double serial = makespan_s({.link = {.latency_s = hop_s}, .overlap = false});
      const double expected = (4 * hop_s + 3) / 3;
      EXPECT_NEAR(serial / overlapped / expected, 1, 0.1) << d << " " << hop_s;
    }
  }
}

TEST(SimulatePipeline, SlowsARankBetweenTwoMoments) {
  const PipelineWork work = uniform_work(1, 1, 1, 1, {.forward_s = 10, .backward_s = 10});
  const PipelineSchedule schedule = make_schedule(work, gpipe(work));
  const auto makespan_s = [&](std::vector<Slowdown> slowdowns) {
    return simulate(work, schedule, {.slowdowns = std::move(slowdowns)}).makespan_s;
  };
  EXPECT_DOUBLE_EQ(makespan_s({}), 20);
  EXPECT_DOUBLE_EQ(makespan_s({{.rank = 0, .factor = 1.5}}), 30);
  EXPECT_DOUBLE_EQ(makespan_s({{.rank = 0, .from_s = 4, .until_s = 8, .factor = 2}}), 22);
  EXPECT_DOUBLE_EQ(makespan_s({{.rank = 0, .from_s = 4, .until_s = 8, .factor = 2},
                               {.rank = 0, .from_s = 6, .factor = 3}}),
                   4 + 2 + 2 + 3 * (20 - 4 - 1 - 1.0 / 3));
  EXPECT_DOUBLE_EQ(makespan_s({{.rank = 1, .factor = 9}}), 20) << "a rank that is not there";
}

TEST(SimulatePipeline, AStragglerDelaysTheRanksAroundIt) {
  const PipelineWork work = uniform_work(4, 4, 1, 10);
  const PipelineSchedule schedule = make_schedule(work, lorapp(work));
  const double even = simulate(work, schedule).makespan_s;
  const PipelineSimulation slow = simulate(work, schedule, {.slowdowns = {{.rank = 2, .factor = 1.5}}});
  EXPECT_GT(slow.makespan_s, 1.3 * even);
  EXPECT_LT(slow.makespan_s, 1.6 * even);
  EXPECT_LT(slow.bubble_ratio(2), 0.12);
  EXPECT_GT(slow.bubble_ratio(0), 0.3);
}

TEST(SimulatePipeline, TransfersSlowTheComputationBesideThem) {
  // Rank 0 computes the second forward, 2 s, while the first one's activation travels for 1 s.
  const PipelineWork work = uniform_work(2, 1, 2, 1, {.forward_s = 2, .backward_s = 1}, {100, 0});
  const PipelineSchedule schedule = make_schedule(work, gpipe(work), {.link = {.bytes_per_s = 100}});
  const PipelineSimulation simulation =
      simulate(work, schedule, {.link = {.bytes_per_s = 100}, .transfer_slowdown = 2});
  EXPECT_DOUBLE_EQ(simulation.ranks[0].spans[0].end_s, 2);
  EXPECT_DOUBLE_EQ(simulation.ranks[0].spans[1].end_s, 4.5) << "1 s at half the pace, then 1.5 s at full";
}

TEST(SimulatePipeline, LinksCarryOneMessageAtATime) {
  // Two forwards of 1 s, messages of 5 s: the second waits for the first.
  const PipelineWork work = uniform_work(2, 1, 2, 1, {.forward_s = 1, .backward_s = 1}, {500, 100});
  const PipelineCluster cluster{.link = {.latency_s = 0.5, .bytes_per_s = 100}};
  const PipelineSimulation simulation = simulate(work, make_schedule(work, gpipe(work), cluster), cluster);
  ASSERT_GE(simulation.transfers.size(), 2u);
  EXPECT_DOUBLE_EQ(simulation.transfers[0].start_s, 1);
  EXPECT_DOUBLE_EQ(simulation.transfers[0].end_s, 6.5);
  EXPECT_DOUBLE_EQ(simulation.transfers[1].start_s, 6) << "the wire is free before the first has arrived";
  EXPECT_DOUBLE_EQ(simulation.transfers[1].end_s, 11.5);
}

TEST(SimulatePipeline, SaysWhoWaitsForWhatInADeadlock) {
  const PipelineWork work = uniform_work(2, 1, 1, 1);
  PipelineSchedule schedule = make_schedule(work, gpipe(work));
  std::erase_if(schedule.ranks[1],
                [](const Action& action) { return action.kind == ActionKind::send_error; });
  try {
    simulate(work, schedule);
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("deadlock; rank 0 waits at action"));
  }
}

}  // namespace
}  // namespace cotune
