#include "plan/deployment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "plan/published_rates.h"
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

TEST(PlanDeployment, IsEmptyWhereTheLongestBucketFitsNowhere) {
  const std::vector<BucketCosts> costs = {{.devices = 1, .seconds = {1}}, {.devices = 8, .seconds = {1, 1}}};
  EXPECT_TRUE(plan_deployment(costs, Counts{3, 1}, 4).empty());
  EXPECT_EQ(plan_deployment(costs, Counts{3, 0}, 4).replicas, (Counts{4, 0}));
}

}  // namespace
}  // namespace cotune
