#include "schedule/pipeline/default_order.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "schedule/pipeline/exact_search.h"
#include "schedule/pipeline/random_work.h"
#include "schedule/pipeline/small_work.h"
#include "schedule/pipeline/verify_pipeline.h"

namespace cotune {
namespace {

TEST(DefaultOrder, IsWithinThreePercentOfTheExactOptimumOnSmallCases) {
  double sum = 0;
  int64_t cases = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Dice dice(seed);
    const PipelineWork work = small_work(dice);
    const PipelineCluster cluster{
        .link = {.latency_s = seed % 3 == 0 ? static_cast<double>(dice.between(0, 4)) / 4 : 0}};
    const ChosenOrder chosen = choose_order(work, cluster);
    ExactSearch search(work, cluster, chosen.makespan_s);
    const double optimum = search.run(60'000);
    if (!search.is_exact()) continue;
    EXPECT_LE(optimum, chosen.makespan_s + 1e-9);
    sum += chosen.makespan_s / optimum - 1;
    ++cases;
  }
  EXPECT_GE(cases, 290);
  EXPECT_LE(sum / static_cast<double>(cases), 0.03);
  RecordProperty("mean_gap", std::to_string(sum / static_cast<double>(cases)));
}

TEST(ExactSearchYardstick, FindsKnownOptima) {
  // A microbatch alone has no choice; 1F1B of one task is optimal with equal stages.
  for (const int32_t p : {1, 2, 3}) {
    for (const int32_t m : {1, 2, 3}) {
      const PipelineWork work = uniform_work(p, 1, m, 1);
      ExactSearch search(work, {}, 1e9);
      EXPECT_DOUBLE_EQ(search.run(1'000'000), (m + p - 1) * 3.0) << p << " " << m;
      EXPECT_TRUE(search.is_exact());
    }
  }
  // Johnson's rule: two tasks, forward only on stage 0 (their adapters sit on stage 1), makespan by hand.
  PipelineWork flow = uniform_work(2, 2, 1, 1);
  for (PipelineJob& job : flow.jobs) job.lowest_stage = 1;
  flow.microbatches[0].cost = {{.forward_s = 5}, {.forward_s = 1, .backward_s = 1}};
  flow.microbatches[1].cost = {{.forward_s = 1}, {.forward_s = 3, .backward_s = 3}};
  ExactSearch search(flow, {}, 1e9);
  EXPECT_DOUBLE_EQ(search.run(1'000'000), 9);  // the second first: 1, then 6 beside the other's 5, then 2
}

/// MuxTune §2.2 (MX-1): a frozen backbone has no weight gradients, with which zero-bubble orders fill a pipeline.
TEST(ZeroBubbleOrders, WithoutWeightGradientsStallByEverySlotThatTheyKeepAndGainNothingByDroppingThem) {
  for (const int32_t p : {2, 4, 8}) {
    const auto makespan = [&](int32_t m, double slot_s) {  // backward and the slot for weight gradients behind it, which stays empty
      const PipelineWork work = uniform_work(p, 1, m, 1, {.forward_s = 1, .backward_s = 1 + slot_s});
      return makespan_s(*ComputeGraph(work, {}).times(one_f_one_b(work, BatchBoundary::flush)));
    };
    for (const int32_t m : {4, 8, 16, 32}) {
      EXPECT_DOUBLE_EQ(makespan(m, 0), 2.0 * (p - 1) + 2 * m);
      EXPECT_DOUBLE_EQ(makespan(m, 1) - makespan(m, 0), m + p - 1) << "linear in the microbatches";
    }
  }
  for (const int32_t p : {2, 3, 4}) {
    for (const int32_t m : {1, 2, 3, 4}) {
      const PipelineWork work = uniform_work(p, 1, m, 1, {.forward_s = 1, .backward_s = 1});
      ExactSearch search(work, {}, 1e9);
      EXPECT_DOUBLE_EQ(search.run(3'000'000), 2.0 * (p - 1) + 2 * m) << "no order is shorter, " << p << " " << m;
    }
  }
}

TEST(DefaultOrder, IsNeverSlowerThanWhatItTriesAndVerifies) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Dice dice(seed);
    const PipelineWork work = random_work(dice, seed % 3 == 0 ? 2 : 1);
    const PipelineCluster cluster = random_cluster(dice);
    const ChosenOrder chosen = choose_order(work, cluster);
    for (const TriedOrder& tried : chosen.tried) {
      EXPECT_LE(chosen.makespan_s, tried.makespan_s * 1.0011 + 1e-12) << tried.name << ", seed " << seed;
    }
    const PipelineFacts facts = verify(work, make_schedule(work, chosen.order, cluster));
    EXPECT_EQ(facts.peak_kept_bytes, peak_kept_bytes(work, chosen.order)) << seed;
    EXPECT_EQ(choose_order(work, cluster).order, chosen.order) << seed;
  }
}

TEST(DefaultOrder, KeepsItsMemoryLimit) {
  const PipelineWork work = uniform_work(4, 6, 2, 3, {.kept_bytes = 1000});
  const ChosenOrder free = choose_order(work);
  std::vector<int64_t> limit(4, 3000);
  const ChosenOrder limited = choose_order(work, {}, limit);
  const PipelineFacts facts = verify(work, make_schedule(work, limited.order));
  for (const int64_t peak : facts.peak_kept_bytes) EXPECT_LE(peak, 3000);
  EXPECT_GE(limited.makespan_s, free.makespan_s);
  EXPECT_TRUE(std::any_of(limited.tried.begin(), limited.tried.end(), [](const TriedOrder& o) {
    return !o.fits;
  })) << "1F1B keeps four on stage 0, and is named as one that does not fit";
  limit[2] = 999;
  EXPECT_THROW(choose_order(work, {}, limit), UserError);
}

TEST(DefaultOrder, OfNoWorkIsEmpty) {
  const ChosenOrder chosen = choose_order(uniform_work(3, 2, 0, 1));
  EXPECT_EQ(chosen.makespan_s, 0);
  EXPECT_EQ(chosen.order, ComputeOrder(3));
}

}  // namespace
}  // namespace cotune
