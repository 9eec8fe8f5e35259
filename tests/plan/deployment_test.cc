#include "plan/deployment/deployment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "plan/cost/published_rates.h"
#include "plan/deployment/replica_counts.h"
#include "plan/random_deployment.h"

namespace cotune {
namespace {

using Counts = std::vector<int64_t>;

std::vector<std::string> names_of(const std::vector<Configuration>& configurations) {
  std::vector<std::string> names;
  for (const Configuration& each : configurations) names.push_back(each.name());
  return names;
}

/// LobRA's worked example: Fig. 4 with the rates of Table 3.
struct WorkedExample {
  WorkedExample() {
    const std::vector<int64_t> lengths = {2048, 4096, 8192, 16384};
    for (const Configuration& each : published_7b_configurations()) {
      if (each.pipeline_stages == 1) costs.push_back(bucket_costs(each, lengths));
    }
  }
  std::vector<BucketCosts> costs;
  Counts sequences = {196, 62, 16, 4};
};

TEST(ProposeConfigurations, OfTable3AreThePapersSix) {
  const std::vector<int64_t> lengths = {2048, 4096, 8192, 16384};
  EXPECT_THAT(names_of(propose_configurations(published_7b_configurations(), lengths)),
              testing::UnorderedElementsAre("<1,1>", "<2,1>", "<1,4>", "<4,1>", "<2,4>", "<8,1>"));
}

TEST(PlanDeployment, OfTheWorkedExampleIsThePapersPlan) {
  const WorkedExample example;
  const Deployment plan = plan_deployment(example.costs, example.sequences, 16, {.gap = 0, .dispatch = {.gap = 0, .nodes = 10'000'000}});
  EXPECT_EQ(plan.replicas, (Counts{4, 2, 0, 1}));
  EXPECT_NEAR(plan.dispatch.makespan, 14.829, 0.0005);
  EXPECT_NEAR(plan.lower_bound, plan.dispatch.makespan, 1e-6);
  ASSERT_FALSE(plan.runners_up.empty());
}

TEST(PlanDeployment, OfTheWorkedExampleWithoutAFilterHasTheSameRunnerUpAsThePapersRatesGive) {
  const WorkedExample example;
  const Deployment plan = plan_deployment(example.costs, example.sequences, 16, {.filter = PlanFilter::none, .gap = 0, .dispatch = {.gap = 0, .nodes = 10'000'000}});
  EXPECT_EQ(plan.replicas, (Counts{4, 2, 0, 1}));
  ASSERT_FALSE(plan.runners_up.empty());
  EXPECT_EQ(plan.runners_up[0].replicas, (Counts{2, 3, 0, 1}));
  EXPECT_NEAR(plan.runners_up[0].makespan, 15.249, 0.0005);
}

TEST(PlanDeployment, OfTheWorkedExampleDispatchedGreedilyLeavesTheLongReplicaIdle) {
  const WorkedExample example;
  const Dispatch greedy = dispatch_greedily(example.costs, Counts{4, 2, 0, 1}, example.sequences);
  EXPECT_NEAR(greedy.seconds[0], 19.64, 0.005);
  EXPECT_NEAR(greedy.seconds[1], 15.41, 0.005);
  EXPECT_NEAR(greedy.seconds[3], 9.92, 0.005);
}

TEST(PlanDeployment, KeepsSevenOfTenPlansOfTheWorkedExampleByThePapersFilter) {
  const WorkedExample example;
  const Deployment plan = plan_deployment(example.costs, example.sequences, 16, {.filter = PlanFilter::paper});
  EXPECT_EQ(plan.enumerated - plan.unable, 10);
  EXPECT_EQ(plan.replicas, (Counts{4, 2, 0, 1}));
  EXPECT_EQ(plan.solved, 7);
  EXPECT_EQ(plan.bounded, 3);
}

TEST(ForEachPlan, CountsThePublishedSizes) {
  const Counts sizes = {4, 4, 8, 8, 8, 16};
  const auto count = [&](int64_t total) {
    int64_t plans = 0;
    for_each_plan(sizes, total, [&](std::span<const int64_t>) { return ++plans > 0; });
    return plans;
  };
  EXPECT_EQ(count(16), 21);
  EXPECT_EQ(count(24), 56);
  EXPECT_EQ(count(32), 126);
  EXPECT_EQ(count(40), 252);
  EXPECT_EQ(count(48), 462);
  EXPECT_EQ(count(64), 1287);
  EXPECT_EQ(count(128), 20349);
  EXPECT_EQ(count(256), 435897);
}

TEST(PlanDeployment, OfSmallCasesIsTheBestOfAllPlans) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const RandomDeployment problem(seed, {.configurations = 3, .buckets = 4, .most_sequences = 12});
    const DispatchLimits exact = {.gap = 0, .nodes = 10'000'000};
    const Deployment plan = plan_deployment(problem.costs, problem.sequences, 12, {.gap = 0, .dispatch = exact});
    double best = std::numeric_limits<double>::infinity();
    Counts sizes;
    for (const BucketCosts& each : problem.costs) sizes.push_back(each.devices);
    for (int64_t total = 12; total > 0 && best == std::numeric_limits<double>::infinity(); --total) {
      for_each_plan(sizes, total, [&](std::span<const int64_t> replicas) {
        if (dispatch_lower_bound(problem.costs, replicas, problem.sequences, 1, 0) < std::numeric_limits<double>::infinity()) {
          best = std::min(best, dispatch_balanced(problem.costs, replicas, problem.sequences, exact).makespan);
        }
        return true;
      });
    }
    if (best == std::numeric_limits<double>::infinity()) {
      EXPECT_TRUE(plan.empty());
      continue;
    }
    EXPECT_NEAR(plan.dispatch.makespan, best, 1e-9 * best) << seed;
    EXPECT_LE(plan.lower_bound, best * (1 + 1e-9)) << seed;
    EXPECT_EQ(plan.enumerated, plan.unable + plan.bounded + plan.solved + plan.open) << seed;
  }
}

/// Eq. 2, written out: the least makespan of all ways to share out the sequences of buckets j and above, with `seconds` of each configuration so far.
double least_evenly(const std::vector<BucketCosts>& costs, const Counts& replicas, const Counts& sequences, size_t j, size_t i, int64_t left,
                    std::vector<double>& seconds, std::vector<bool>& has_any) {
  constexpr double none = std::numeric_limits<double>::infinity();
  if (j == sequences.size()) {
    double makespan = 0;
    for (size_t each = 0; each < costs.size(); ++each) makespan = std::max(makespan, has_any[each] ? seconds[each] + costs[each].fill : 0.0);
    return makespan;
  }
  if (i == costs.size()) {
    if (left > 0) return none;
    return least_evenly(costs, replicas, sequences, j + 1, 0, j + 1 < sequences.size() ? sequences[j + 1] : 0, seconds, has_any);
  }
  double best = none;
  const int64_t most = replicas[i] > 0 && j < costs[i].reach() ? left : 0;
  for (int64_t taken = 0; taken <= most; ++taken) {
    const double before = seconds[i];
    const bool had_any = has_any[i];
    if (taken > 0) {
      seconds[i] += static_cast<double>((taken + replicas[i] - 1) / replicas[i]) * costs[i].seconds[j];
      has_any[i] = true;
    }
    best = std::min(best, least_evenly(costs, replicas, sequences, j, i + 1, left - taken, seconds, has_any));
    seconds[i] = before;
    has_any[i] = had_any;
  }
  return best;
}

/// Of every number of replicas of three configurations that stand on the devices, idle ones left over or not; nothing of the planner takes part.
TEST(PlanDeployment, OfOddSizesIsTheBestThatPlainLoopsFind) {
  const std::vector<Counts> sizes = {{2, 3, 5}, {1, 3, 4}, {3, 4, 6}, {5, 7, 2}};
  for (uint64_t seed = 0; seed < 60; ++seed) {
    RandomDeployment problem(seed, {.configurations = 3, .buckets = 3, .most_sequences = 4});
    for (size_t i = 0; i < 3; ++i) problem.costs[i].devices = sizes[seed % sizes.size()][i];
    const int64_t devices = 11 + static_cast<int64_t>(seed % 2);
    const Counts& size = sizes[seed % sizes.size()];
    double best = std::numeric_limits<double>::infinity();
    for (int64_t a = 0; a * size[0] <= devices; ++a) {
      for (int64_t b = 0; a * size[0] + b * size[1] <= devices; ++b) {
        for (int64_t c = 0; a * size[0] + b * size[1] + c * size[2] <= devices; ++c) {
          std::vector<double> seconds(3, 0);
          std::vector<bool> has_any(3, false);
          best = std::min(best, least_evenly(problem.costs, {a, b, c}, problem.sequences, 0, 0, problem.sequences[0], seconds, has_any));
        }
      }
    }
    const Deployment plan = plan_deployment(problem.costs, problem.sequences, devices, {.gap = 0, .dispatch = {.gap = 0, .nodes = 10'000'000}});
    ASSERT_EQ(plan.empty(), best == std::numeric_limits<double>::infinity()) << seed;
    if (plan.empty()) continue;
    EXPECT_NEAR(plan.dispatch.makespan, best, 1e-9 * best + 1e-12) << seed;
    EXPECT_LE(plan.lower_bound, best * (1 + 1e-9)) << seed;
  }
}

/// The least makespan of dealing the sequences to single replicas, by trying all.
double least_by_row(const std::vector<BucketCosts>& costs, std::vector<std::pair<size_t, double>>& replicas, Counts& left, double best) {
  size_t bucket = left.size();
  while (bucket-- > 0 && left[bucket] == 0) {
  }
  if (bucket == static_cast<size_t>(-1)) {
    double makespan = 0;
    for (const auto& [configuration, seconds] : replicas) makespan = std::max(makespan, seconds);
    return std::min(best, makespan);
  }
  --left[bucket];
  for (size_t r = 0; r < replicas.size(); ++r) {
    auto& [configuration, seconds] = replicas[r];
    const bool repeats = std::count(replicas.begin(), replicas.begin() + static_cast<std::ptrdiff_t>(r), replicas[r]) > 0;
    if (repeats || bucket >= costs[configuration].reach()) continue;
    const double before = seconds;
    seconds = (before > 0 ? before : costs[configuration].fill) + costs[configuration].seconds[bucket];
    if (seconds < best) best = least_by_row(costs, replicas, left, best);
    seconds = before;
  }
  ++left[bucket];
  return best;
}

TEST(PlanDeployment, ByRowIsBetweenItsBoundAndLittleMoreThanTheBestOfAllDealings) {
  double sum = 0;
  int count = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const RandomDeployment problem(seed, {.configurations = 3, .buckets = 3, .most_sequences = 3});
    const int64_t devices = 8;
    // Both ways: all plans looked at, and searched from the relaxation.
    for (const int64_t enumerated : {5000, 0}) {
      const Deployment plan = plan_deployment(problem.costs, problem.sequences, devices, {.dealing = Dealing::by_row, .enumerated = enumerated});
      double best = std::numeric_limits<double>::infinity();
      Counts sizes;
      for (const BucketCosts& each : problem.costs) sizes.push_back(each.devices);
      for (int64_t total = devices; total > 0 && best == std::numeric_limits<double>::infinity(); --total) {
        for_each_plan(sizes, total, [&](std::span<const int64_t> replicas) {
          std::vector<std::pair<size_t, double>> single;
          for (size_t i = 0; i < sizes.size(); ++i) single.insert(single.end(), static_cast<size_t>(replicas[i]), {i, 0.0});
          Counts left = problem.sequences;
          best = least_by_row(problem.costs, single, left, best);
          return true;
        });
      }
      ASSERT_EQ(plan.empty(), best == std::numeric_limits<double>::infinity()) << seed;
      if (plan.empty() || best == 0) continue;
      EXPECT_LE(plan.lower_bound, best * (1 + 1e-9)) << seed;
      EXPECT_GE(plan.dispatch.makespan, best * (1 - 1e-9)) << seed;
      EXPECT_LE(plan.dispatch.makespan, 1.5 * best) << seed;
      EXPECT_EQ(plan.rows, dispatch_rows(problem.costs, plan.replicas, problem.sequences));
      sum += plan.dispatch.makespan / best - 1;
      ++count;
    }
  }
  EXPECT_GT(count, 60);
  EXPECT_LT(sum / count, 0.03) << "in the mean";
}

TEST(PlanDeployment, BySearchIsAsGoodAsByListingWhereBothAreProven) {
  int64_t compared = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const RandomDeployment problem(seed, {.configurations = 4, .buckets = 5, .most_sequences = 40});
    const Deployment listed = plan_deployment(problem.costs, problem.sequences, 24);
    const Deployment searched = plan_deployment(problem.costs, problem.sequences, 24, {.enumerated = 0});
    ASSERT_EQ(listed.empty(), searched.empty()) << seed;
    if (listed.empty()) continue;
    EXPECT_LE(searched.lower_bound, listed.dispatch.makespan * (1 + 1e-9)) << seed;
    EXPECT_LE(listed.lower_bound, searched.dispatch.makespan * (1 + 1e-9)) << seed;
    EXPECT_EQ(searched.enumerated, searched.unable + searched.bounded + searched.solved + searched.open) << seed;
    EXPECT_EQ(searched, plan_deployment(problem.costs, problem.sequences, 24, {.enumerated = 0})) << seed;
    if (searched.open > 0) continue;
    ++compared;
    EXPECT_LE(searched.dispatch.makespan, listed.dispatch.makespan * 1.011) << seed;
  }
  EXPECT_GT(compared, 40);
}

TEST(PlanDeployment, OfManyDevicesIsFoundAndProvenWithoutListingPlans) {
  // Five kinds of replicas on 512 devices: three million plans.
  std::vector<BucketCosts> costs;
  for (const int64_t devices : {1, 2, 4, 8, 16}) {
    BucketCosts& each = costs.emplace_back();
    each.devices = devices;
    for (int64_t j = 0; (int64_t{1} << j) <= 4 * devices && j < 7; ++j) {
      each.seconds.push_back(0.1 * std::pow(2.0, j) * std::pow(static_cast<double>(devices), -0.8));
    }
  }
  const Counts sequences = {5000, 2000, 900, 300, 100, 30, 10};
  const Deployment plan = plan_deployment(costs, sequences, 512, {.dealing = Dealing::by_row});
  EXPECT_GT(plan.enumerated, 3'000'000);
  EXPECT_LE(plan.dispatch.makespan, 1.02 * plan.lower_bound);
  int64_t devices = 0;
  for (size_t i = 0; i < costs.size(); ++i) devices += plan.replicas[i] * costs[i].devices;
  EXPECT_EQ(devices, 512);
}

TEST(DispatchRows, OfTheWorkedExampleEndNoLaterThanEvenShares) {
  const WorkedExample example;
  const RowDispatch rows = dispatch_rows(example.costs, Counts{4, 2, 0, 1}, example.sequences);
  EXPECT_LE(rows.makespan, 14.829);
  Counts total(4, 0);
  for (const ReplicaRows& each : rows.replicas) {
    double seconds = 0;
    for (size_t j = 0; j < each.sequences.size(); ++j) {
      total[j] += each.sequences[j];
      if (each.sequences[j] > 0) seconds += static_cast<double>(each.sequences[j]) * example.costs[each.configuration].seconds.at(j);
    }
    EXPECT_NEAR(seconds, each.seconds, 1e-9);
  }
  EXPECT_EQ(total, example.sequences);
  EXPECT_TRUE(dispatch_rows(example.costs, Counts{4, 0, 0, 0}, example.sequences).empty());
}

TEST(DispatchRows, OfFewRowsAreTheBestOfAllDealings) {
  int compared = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const RandomDeployment problem(seed, {.configurations = 3, .buckets = 4, .most_sequences = 3, .most_replicas = 2});
    std::vector<std::pair<size_t, double>> single;
    for (size_t i = 0; i < problem.replicas.size(); ++i) single.insert(single.end(), static_cast<size_t>(problem.replicas[i]), {i, 0.0});
    Counts left = problem.sequences;
    const double best = least_by_row(problem.costs, single, left, std::numeric_limits<double>::infinity());
    const RowDispatch rows = dispatch_rows(problem.costs, problem.replicas, problem.sequences);
    ASSERT_FALSE(rows.empty()) << seed;
    EXPECT_GE(rows.makespan, best * (1 - 1e-9)) << seed;
    EXPECT_LE(rows.makespan, best * (1 + 1e-6)) << seed;
    EXPECT_LE(rows.makespan, dispatch_greedily(problem.costs, problem.replicas, problem.sequences).makespan * (1 + 1e-9)) << seed;
    ++compared;
  }
  EXPECT_EQ(compared, 400);
}

TEST(DispatchRows, ExchangesASequenceForAsManyAsMakeUpForIt) {
  const std::vector<BucketCosts> costs = {{.devices = 1, .seconds = {1, 9}}, {.devices = 1, .seconds = {2, 16, 33}}, {.devices = 1, .seconds = {1, 11, 25}}};
  EXPECT_NEAR(dispatch_rows(costs, Counts{1, 1, 1}, Counts{0, 6, 1}).makespan, 33, 1e-9);
}

TEST(DispatchRows, OfManyReplicasEndNoLaterThanByGreedyDispatch) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const RandomDeployment problem(seed, {.configurations = 4, .buckets = 8, .most_sequences = 60, .most_replicas = 20});
    const RowDispatch rows = dispatch_rows(problem.costs, problem.replicas, problem.sequences);
    EXPECT_LE(rows.makespan, dispatch_greedily(problem.costs, problem.replicas, problem.sequences).makespan * (1 + 1e-9)) << seed;
    Counts dealt(problem.sequences.size(), 0);
    for (const ReplicaRows& each : rows.replicas) {
      for (size_t j = 0; j < dealt.size(); ++j) dealt[j] += each.sequences[j];
      EXPECT_LE(each.seconds, rows.makespan) << seed;
    }
    EXPECT_EQ(dealt, problem.sequences) << seed;
  }
}

TEST(PlanDeployment, TakesMoreConfigurationsThanReplicaSizes) {
  std::vector<BucketCosts> costs;
  for (int64_t k = 0; k < 42; ++k) {
    costs.push_back({.devices = 1 + k / 3, .seconds = {1.0 / static_cast<double>(1 + k / 3) + 0.01 * static_cast<double>(k % 3), 1}});
  }
  for (const Dealing dealing : {Dealing::by_row, Dealing::evenly}) {
    const Deployment plan = plan_deployment(costs, Counts{9, 1}, 10, {.dealing = dealing});
    ASSERT_FALSE(plan.empty());
    EXPECT_GE(plan.dispatch.makespan, plan.lower_bound * (1 - 1e-9));
  }
}

TEST(PlanDeployment, IsEmptyWhereTheLongestBucketFitsNowhere) {
  const std::vector<BucketCosts> costs = {{.devices = 1, .seconds = {1}}, {.devices = 8, .seconds = {1, 1}}};
  EXPECT_TRUE(plan_deployment(costs, Counts{3, 1}, 4).empty());
  EXPECT_EQ(plan_deployment(costs, Counts{3, 0}, 4).replicas, (Counts{4, 0}));
}

}  // namespace
}  // namespace cotune
