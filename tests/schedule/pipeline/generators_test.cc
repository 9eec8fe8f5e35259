#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "schedule/pipeline/random_work.h"
#include "schedule/pipeline/verify_pipeline.h"

namespace cotune {
namespace {

ComputeTimes times_of(const PipelineWork& work, const ComputeOrder& order,
                      const PipelineCluster& cluster = {}) {
  const auto times = ComputeGraph(work, cluster).times(order);
  COTUNE_CHECK(times.has_value(), "a cycle");
  return *times;
}

double busy_s(const std::vector<ComputeSpan>& rank) {
  return std::accumulate(rank.begin(), rank.end(), 0.0,
                         [](double sum, const ComputeSpan& span) { return sum + span.end_s - span.start_s; });
}

/// Idle share of all ranks from the start to the end of all.
double bubble_ratio(const ComputeTimes& times) {
  double busy = 0;
  for (const auto& rank : times) busy += busy_s(rank);
  return 1 - busy / (makespan_s(times) * static_cast<double>(times.size()));
}

/// Idle share between two moments.
double idle_share(const ComputeTimes& times, double from_s, double until_s) {
  double busy = 0;
  for (const auto& rank : times) {
    for (const ComputeSpan& span : rank) {
      busy += std::max(0.0, std::min(span.end_s, until_s) - std::max(span.start_s, from_s));
    }
  }
  return 1 - busy / ((until_s - from_s) * static_cast<double>(times.size()));
}

TEST(Gpipe, HasTheBubbleOfTheClosedForm) {
  for (const int32_t p : {1, 2, 3, 4, 8}) {
    for (const int32_t m : {1, 2, 3, 4, 8, 13}) {
      for (const double ratio : {0.67, 1.0, 2.0, 3.0}) {
        const PipelineWork work = uniform_work(p, 1, m, 1, {.forward_s = 1, .backward_s = ratio});
        EXPECT_NEAR(bubble_ratio(times_of(work, gpipe(work))), (p - 1.0) / (m + p - 1), 1e-12)
            << p << " " << m;
      }
    }
  }
}

TEST(OneFOneB, HasGpipesBubbleAndKeepsOneMicrobatchPerStageToCome) {
  for (const int32_t p : {1, 2, 3, 4, 8}) {
    for (const int32_t m : {1, 2, 3, 4, 8, 13}) {
      for (const double ratio : {0.67, 1.0, 2.0, 3.0}) {
        const PipelineWork work = uniform_work(p, 1, m, 1, {.forward_s = 1, .backward_s = ratio});
        const ComputeOrder order = one_f_one_b(work, BatchBoundary::flush);
        EXPECT_NEAR(bubble_ratio(times_of(work, order)), (p - 1.0) / (m + p - 1), 1e-12) << p << " " << m;
        const PipelineFacts facts = verify(work, make_schedule(work, order));
        for (int32_t s = 0; s < p; ++s) {
          EXPECT_EQ(facts.peak_in_flight[static_cast<size_t>(s)], std::min(p - s, m)) << p << " " << m;
        }
      }
    }
  }
}

TEST(OneFOneB, OfSeveralTasksTakesTheSumUnderFlushAndLessWithout) {
  const PipelineWork work = uniform_work(4, 3, 6, 2);
  const PipelineWork alone = uniform_work(4, 1, 6, 1);
  const double one = makespan_s(times_of(alone, one_f_one_b(alone, BatchBoundary::flush)));
  const double flushed = makespan_s(times_of(work, one_f_one_b(work, BatchBoundary::flush)));
  const double continuous = makespan_s(times_of(work, one_f_one_b(work, BatchBoundary::continuous)));
  EXPECT_DOUBLE_EQ(flushed, 6 * one);
  EXPECT_DOUBLE_EQ(continuous, (36 + 3) * 3);  // one filling and draining of 36 microbatches of 3 s
}

TEST(Interleaved, HasTheBubbleOfTheClosedForm) {
  for (const int32_t p : {2, 3, 4, 8}) {
    for (const int32_t v : {1, 2, 3, 4}) {
      for (const int32_t groups : {1, 2, 3}) {
        PipelineWork work = uniform_work(p, 1, groups * p, 1);
        work.stage_rank = interleaved_stages(p, v);
        for (PipelineMicrobatch& microbatch : work.microbatches)
          microbatch.cost.resize(static_cast<size_t>(p * v));
        const double expected = (p - 1.0) / (v * groups * p + p - 1);
        const ComputeOrder order = interleaved_one_f_one_b(work, BatchBoundary::flush);
        EXPECT_NEAR(bubble_ratio(times_of(work, order)), expected, 1e-12) << p << " " << v << " " << groups;
        verify(work, make_schedule(work, order));
      }
    }
  }
}

TEST(Lorapp, HasTheBubbleOfTheFormulaInASteadyRegion) {
  for (const int32_t d : {2, 3, 4, 5, 6, 8}) {
    for (const int32_t n : {1, 2, 3, 4, 6, 8}) {
      for (int32_t l = 1; l <= d + 2; ++l) {
        for (const double ratio : {0.67, 1.0, 1.5, 2.0, 3.0}) {
          const PipelineWork work = uniform_work(d, l, n, 9, {.forward_s = 1, .backward_s = ratio});
          // From the start of one step of job 0 on stage 0 to that of a later one: whole periods.
          std::vector<double> starts;
          const ComputeOrder order = lorapp(work);
          const ComputeTimes times = times_of(work, order);
          for (size_t i = 0; i < order[0].size(); ++i) {
            const PipelineMicrobatch& microbatch =
                work.microbatches[static_cast<size_t>(order[0][i].microbatch)];
            const bool is_first = order[0][i].microbatch % n == 0 && !order[0][i].backward;
            if (microbatch.hybrid_task == 0 && is_first) starts.push_back(times[0][i].start_s);
          }
          EXPECT_NEAR(idle_share(times, starts[3], starts[7]), lorapp_bubble_ratio(d, l, n), 0.015)
              << "D " << d << " L " << l << " N " << n << " ratio " << ratio;
        }
      }
    }
  }
}

TEST(Lorapp, FormulaIsThePapersFigure9) {
  EXPECT_DOUBLE_EQ(lorapp_bubble_ratio(4, 1, 1), 0.75);
  EXPECT_DOUBLE_EQ(lorapp_bubble_ratio(4, 1, 2), 0.60);
  EXPECT_DOUBLE_EQ(lorapp_bubble_ratio(4, 1, 3), 0.50);
  EXPECT_NEAR(lorapp_bubble_ratio(4, 1, 4), 0.43, 0.002);
  EXPECT_DOUBLE_EQ(lorapp_bubble_ratio(4, 2, 1), 0.50);
  EXPECT_DOUBLE_EQ(lorapp_bubble_ratio(4, 2, 2), 0.20);
  EXPECT_DOUBLE_EQ(lorapp_bubble_ratio(4, 2, 3), 0);
  EXPECT_DOUBLE_EQ(lorapp_bubble_ratio(4, 3, 1), 0.25);
  EXPECT_DOUBLE_EQ(lorapp_bubble_ratio(4, 3, 2), 0);
  EXPECT_DOUBLE_EQ(lorapp_bubble_ratio(4, 4, 1), 0);
}

TEST(Lorapp, SplitsFewAdaptersJustEnough) {
  EXPECT_EQ(lorapp_microbatches(4, 2, 100), 3);
  EXPECT_EQ(lorapp_microbatches(4, 2, 2), 2);
  EXPECT_EQ(lorapp_microbatches(4, 1, 8), 8);
  EXPECT_EQ(lorapp_microbatches(4, 4, 8), 1);
  EXPECT_EQ(lorapp_microbatches(1, 1, 8), 1);
  for (int64_t d = 2; d <= 16; ++d) {
    for (int64_t l = 2; l <= d + 1; ++l) {
      const int64_t n = lorapp_microbatches(d, l, 1000);
      EXPECT_EQ(lorapp_bubble_ratio(d, l, n), 0) << d << " " << l;
      EXPECT_TRUE(n == 1 || lorapp_bubble_ratio(d, l, n - 1) > 0) << d << " " << l;
    }
  }
}

TEST(Lorapp, SpeedsUpOverGpipeAsTheThroughputModelSays) {
  for (const int32_t d : {2, 4, 8}) {
    for (const int32_t n : {1, 2, 4}) {
      for (int32_t l = 1; l <= d + 1; ++l) {
        const int32_t rounds = 60;
        const PipelineWork many = uniform_work(d, l, n, rounds);
        const PipelineWork one = uniform_work(d, 1, n, rounds);
        const double speedup =
            l * makespan_s(times_of(one, gpipe(one))) / makespan_s(times_of(many, lorapp(many)));
        EXPECT_NEAR(speedup / lorapp_speedup(d, l, n), 1, 0.02) << d << " " << l << " " << n;
        const bool has_bubble = lorapp_bubble_ratio(d, l, n) > 0;
        EXPECT_NEAR(lorapp_speedup(d, l, n), has_bubble ? l : (d + n - 1.0) / n, 1e-12);
      }
    }
  }
}

TEST(Lorapp, BackwardFirstKeepsLessOnLaterStages) {
  const auto peaks = [](int32_t d, int32_t l, bool backward_first) {
    const PipelineWork work = uniform_work(d, l, 1, 10);
    return verify(work, make_schedule(work, lorapp(work, {}, backward_first))).peak_in_flight;
  };
  using Peaks = std::vector<int32_t>;
  EXPECT_EQ(peaks(4, 4, true), (Peaks{4, 4, 4, 1}));
  EXPECT_EQ(peaks(4, 4, false), (Peaks{4, 4, 4, 4}));
  EXPECT_EQ(peaks(8, 8, true), (Peaks{8, 8, 8, 8, 8, 7, 4, 1}));
  EXPECT_EQ(peaks(8, 8, false), Peaks(8, 8));
  EXPECT_EQ(peaks(4, 6, true), (Peaks{6, 6, 4, 1}));
  EXPECT_EQ(peaks(4, 6, false), Peaks(4, 6));
}

TEST(Lorapp, ScalesWithTheStagesFromAsManyAdaptersOn) {
  const auto throughput = [](int32_t d) {
    const PipelineWork work = uniform_work(d, 8, 1, 400, {.forward_s = 1.0 / d, .backward_s = 2.0 / d});
    return 8 * 400 / makespan_s(times_of(work, lorapp(work)));
  };
  for (const int32_t d : {2, 3, 4, 5, 6, 7, 8})
    EXPECT_NEAR(throughput(d) / (d * throughput(1)), 1, 0.01) << d;
}

TEST(Lorapp, NeedsMoreThanOneAdapterPerStageWhereLinksAreSlow) {
  // The reference's simulated table: idle share for D = 4, forward 1 s, backward 2 s, hop c.
  const auto idle = [](double hop_s, int32_t l) {
    const PipelineWork work = uniform_work(4, l, 1, 60);
    const PipelineCluster cluster{.link = {.latency_s = hop_s}};
    const ComputeOrder order = lorapp(work, cluster);
    const ComputeTimes times = times_of(work, order, cluster);
    return idle_share(times, makespan_s(times) * 0.25, makespan_s(times) * 0.75);
  };
  EXPECT_NEAR(idle(0.1, 4), 0.048, 0.01);
  EXPECT_NEAR(idle(0.1, 7), 0, 0.01);
  EXPECT_GT(idle(0.3, 4), idle(0.3, 5));
  EXPECT_NEAR(idle(0.3, 7), 0, 0.01);
}

TEST(StructuredTemplate, LeavesTheLastStageNoBubbleUnderThePapersPremises) {
  int lemma_exact = 0, bound_exact = 0;
  double worst_lemma = 1, worst_bound = 1;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Dice dice(seed);
    const auto stages = static_cast<int32_t>(dice.between(2, 8));
    const auto buckets = static_cast<int32_t>(dice.between(1, 6));
    const auto count = static_cast<int32_t>(dice.between(1, 8));
    PipelineWork work = uniform_work(stages, buckets, count, 1);
    std::vector<double> latencies;
    for (int32_t b = 0; b < buckets; ++b) latencies.push_back(static_cast<double>(dice.between(1, 20)));
    for (PipelineMicrobatch& microbatch : work.microbatches) {
      const double latency = latencies[static_cast<size_t>(microbatch.hybrid_task)];
      for (StageCost& cost : microbatch.cost) cost = {.forward_s = latency, .backward_s = latency};
    }
    const ComputeTimes times = times_of(work, structured_template(work));
    const std::vector<ComputeSpan>& last = times.back();
    EXPECT_NEAR(last.back().end_s - last.front().start_s, busy_s(last), 1e-9) << seed;

    std::sort(latencies.rbegin(), latencies.rend());
    const double makespan = makespan_s(times);
    const double bound = makespan / template_makespan_bound(latencies, count, stages);
    const double lemma = makespan / template_makespan_lemma(latencies, count, stages);
    EXPECT_GE(bound, 1 - 1e-12) << seed;
    EXPECT_GE(lemma, 1 - 1e-12) << seed;
    lemma_exact += lemma < 1 + 1e-12 ? 1 : 0;
    bound_exact += bound < 1 + 1e-12 ? 1 : 0;
    worst_lemma = std::max(worst_lemma, lemma);
    worst_bound = std::max(worst_bound, bound);
    const double flushed = makespan_s(times_of(work, one_f_one_b(work, BatchBoundary::flush)));
    EXPECT_LE(makespan, flushed + 1e-9) << seed;
  }
  // As docs/schedules.md says.
  EXPECT_EQ(lemma_exact, 1739);
  EXPECT_EQ(bound_exact, 2845);
  EXPECT_NEAR(worst_lemma, 1.673, 5e-4);
  EXPECT_NEAR(worst_bound, 1.024, 5e-4);
}

TEST(StructuredTemplate, OfTenThousandRandomPlansWaitsForNothingThatNeverComes) {
  for (uint64_t seed = 0; seed < 10'000; ++seed) {
    Dice dice(50'000 + seed);
    const PipelineWork work = random_work(dice, seed % 4 == 0 ? 2 : 1);
    const PipelineCluster cluster = random_cluster(dice);
    ASSERT_NO_THROW(verify(work, make_schedule(work, structured_template(work, cluster), cluster))) << seed;
  }
}

/// Buckets of one to eight microbatches on two to eight stages, whose speeds differ by a fifth either way, with backwards that take one to
/// three times as long as forwards: beside the paper's premises.
PipelineWork uneven_work(Dice& dice) {
  const auto stages = static_cast<int32_t>(dice.between(2, 8)), buckets = static_cast<int32_t>(dice.between(1, 6));
  PipelineWork work = uniform_work(stages, buckets, static_cast<int32_t>(dice.between(1, 8)), 1);
  std::vector<double> slowness, latencies, ratios;
  for (int32_t s = 0; s < stages; ++s) slowness.push_back(static_cast<double>(dice.between(80, 120)) / 100);
  for (int32_t b = 0; b < buckets; ++b) {
    latencies.push_back(static_cast<double>(dice.between(1, 20)));
    ratios.push_back(static_cast<double>(dice.between(4, 12)) / 4);
  }
  for (PipelineMicrobatch& microbatch : work.microbatches) {
    const auto bucket = static_cast<size_t>(microbatch.hybrid_task);
    for (size_t s = 0; s < microbatch.cost.size(); ++s) {
      const double forward = latencies[bucket] * slowness[s];
      microbatch.cost[s] = {.forward_s = forward, .backward_s = ratios[bucket] * forward};
    }
  }
  return work;
}

TEST(StructuredTemplate, OfUnevenWorkIsHardlyEverSlowerThanTaskByTask1F1BAndNeverByMuch) {
  int slower = 0;
  double worst = 0, sum = 0;
  constexpr int cases = 3000;
  for (uint64_t seed = 0; seed < cases; ++seed) {
    Dice dice(seed);
    const PipelineWork work = uneven_work(dice);
    const double ratio =
        makespan_s(times_of(work, structured_template(work))) / makespan_s(times_of(work, one_f_one_b(work, BatchBoundary::flush)));
    ASSERT_LE(ratio, 1.05) << seed;
    slower += ratio > 1 + 1e-9 ? 1 : 0;
    worst = std::max(worst, ratio);
    sum += ratio;
  }
  RecordProperty("worst", std::to_string(worst));
  RecordProperty("slower", std::to_string(slower));
  EXPECT_LT(slower, cases / 100);
  EXPECT_LT(sum, 0.8 * cases) << "and much faster on the whole";
}

TEST(StructuredTemplate, LemmaIsExactForBucketsOfLikeLatency) {
  int exact = 0;
  constexpr int cases = 2000;
  for (uint64_t seed = 0; seed < cases; ++seed) {
    Dice dice(seed);
    const auto count = static_cast<int32_t>(dice.between(1, 8));
    PipelineWork work = uniform_work(4, 4, count, 1);
    std::vector<double> latencies;
    for (int32_t b = 0; b < 4; ++b) latencies.push_back(static_cast<double>(dice.between(100, 120)));
    for (PipelineMicrobatch& microbatch : work.microbatches) {
      const double latency = latencies[static_cast<size_t>(microbatch.hybrid_task)];
      for (StageCost& cost : microbatch.cost) cost = {.forward_s = latency, .backward_s = latency};
    }
    std::sort(latencies.rbegin(), latencies.rend());
    const double makespan = makespan_s(times_of(work, structured_template(work)));
    exact += std::abs(makespan - template_makespan_lemma(latencies, count, 4)) < 1e-6;
  }
  EXPECT_EQ(exact, cases);
}

TEST(StructuredTemplate, GainsOverTaskByTask1F1BAsTheClosedFormSays) {
  // P equal tasks: P(C+S-1)/(S-1+PC) (reference MX-39).
  for (const int32_t c : {4, 8, 16}) {
    for (const int32_t p : {1, 2, 4, 16}) {
      const int32_t s = 4;
      const PipelineWork work = uniform_work(s, p, c, 1, {.forward_s = 1, .backward_s = 1});
      const double gain = makespan_s(times_of(work, one_f_one_b(work, BatchBoundary::flush))) /
                          makespan_s(times_of(work, structured_template(work)));
      EXPECT_NEAR(gain, p * (c + s - 1.0) / (s - 1 + p * c), 1e-9) << c << " " << p;
    }
  }
}

TEST(StructuredTemplate, KeepsLimitsAndRefusesWhatExceedsThem) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Dice dice(seed);
    const PipelineWork work = random_work(dice);
    TemplateLimits limits;
    for (int32_t rank = 0; rank < work.rank_count; ++rank) {
      int64_t largest = 0;
      for (const PipelineUnit& unit : units_of(work)) {
        int64_t bytes = 0;
        for (int32_t m = unit.first; m < unit.first + unit.count; ++m) {
          bytes += work.microbatches[static_cast<size_t>(m)].cost[static_cast<size_t>(rank)].kept_bytes;
        }
        largest = std::max(largest, bytes);
      }
      limits.kept_bytes.push_back(largest + 1000 * dice.between(0, 4));
    }
    const PipelineFacts facts = verify(work, make_schedule(work, structured_template(work, {}, limits)));
    for (size_t rank = 0; rank < limits.kept_bytes.size(); ++rank) {
      ASSERT_LE(facts.peak_kept_bytes[rank], limits.kept_bytes[rank]) << seed;
    }
  }
  const PipelineWork work = uniform_work(2, 1, 1, 1, {.kept_bytes = 500});
  try {
    structured_template(work, {}, {.kept_bytes = {500, 499}});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "rank 1 may keep 499 bytes, but microbatches 0 to 0, which belong together, need 500");
  }
}

TEST(ListScheduling, LetsNoSmallMicrobatchTakeTheRoomOfALargerOneBeforeIt) {
  // The third fits beside the first, the second does not: were the third to go ahead, it could not go
  // backward before the second, which would wait for its room.
  PipelineWork work = uniform_work(2, 1, 3, 1, {.kept_bytes = 40});
  for (StageCost& cost : work.microbatches[1].cost) cost.kept_bytes = 80;
  for (const bool backward_first : {true, false}) {
    for (const bool strict : {true, false}) {
      const ListPolicy policy{
          .backward_first = backward_first, .strict = strict, .kept_bytes_limit = {100, 100}};
      const PipelineFacts facts = verify(work, make_schedule(work, list_schedule(work, {}, policy)));
      EXPECT_LE(facts.peak_kept_bytes[0], 100);
    }
  }
  // Whatever the sizes, with room for the largest there is an order.
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Dice dice(seed);
    PipelineWork random = random_work(dice);
    std::vector<int64_t> limits(static_cast<size_t>(random.rank_count), 0);
    for (const PipelineUnit& unit : units_of(random)) {
      for (size_t rank = 0; rank < limits.size(); ++rank) {
        int64_t bytes = 0;
        for (int32_t m = unit.first; m < unit.first + unit.count; ++m) {
          bytes += random.microbatches[static_cast<size_t>(m)].cost[rank].kept_bytes;
        }
        limits[rank] = std::max(limits[rank], bytes);
      }
    }
    for (const bool backward_first : {true, false}) {
      const ListPolicy policy{.backward_first = backward_first, .kept_bytes_limit = limits};
      verify(random, make_schedule(random, list_schedule(random, {}, policy)));
    }
  }
}

TEST(Generators, GiveEqualOrdersForEqualWork) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Dice dice(seed);
    Dice again(seed);
    const PipelineWork work = random_work(dice);
    const PipelineWork same = random_work(again);
    const PipelineCluster cluster = random_cluster(dice);
    const std::vector<NamedOrder> a = all_orders(work, cluster);
    const std::vector<NamedOrder> b = all_orders(same, cluster);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].order, b[i].order) << a[i].name;
  }
}

TEST(Generators, SendTwoMessagesPerMicrobatchAndBoundary) {
  const MessageBytes sent = 512 * token_bytes(4096, 2);
  for (const int32_t d : {1, 2, 4}) {
    const PipelineWork work = uniform_work(d, 3, 2, 2, {}, sent);
    for (const NamedOrder& named : all_orders(work, {})) {
      const PipelineFacts facts = verify(work, make_schedule(work, named.order));
      EXPECT_EQ(facts.message_count, 2 * (d - 1) * 12) << named.name;
      EXPECT_EQ(facts.message_bytes, (d - 1) * 12 * 512 * 4096 * (4 + 2)) << named.name;
      EXPECT_EQ(facts.norm_message_count, (d - 1) * 3)
          << named.name;  // after the last step of each job alone
    }
  }
}

}  // namespace
}  // namespace cotune
