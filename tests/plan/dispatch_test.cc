#include "plan/deployment/dispatch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "plan/random_deployment.h"
#include "support/source_folder.h"

namespace cotune {
namespace {

/// The least makespan over all ways to deal every bucket.
double exhaustive(const std::vector<BucketCosts>& costs, const std::vector<int64_t>& replicas,
                  const std::vector<int64_t>& sequences) {
  std::vector<std::vector<int64_t>> d(costs.size(), std::vector<int64_t>(sequences.size(), 0));
  double best = std::numeric_limits<double>::infinity();
  const auto deal = [&](const auto& self, size_t j, size_t i, int64_t left) -> void {
    if (j == sequences.size()) {
      const std::vector<double> seconds = dispatch_seconds(costs, replicas, d);
      best = std::min(best, *std::max_element(seconds.begin(), seconds.end()));
      return;
    }
    if (i + 1 == costs.size()) {
      if (left > 0 && (replicas[i] == 0 || j >= costs[i].reach())) return;
      d[i][j] = left;
      self(self, j + 1, 0, j + 1 < sequences.size() ? sequences[j + 1] : 0);
      d[i][j] = 0;
      return;
    }
    for (int64_t take = 0; take <= left; ++take) {
      if (take > 0 && (replicas[i] == 0 || j >= costs[i].reach())) break;
      d[i][j] = take;
      self(self, j, i + 1, left - take);
    }
    d[i][j] = 0;
  };
  deal(deal, 0, 0, sequences[0]);
  return best;
}

void expect_complete(const Dispatch& dispatch, const RandomDeployment& problem) {
  for (size_t j = 0; j < problem.sequences.size(); ++j) {
    int64_t total = 0;
    for (size_t i = 0; i < problem.costs.size(); ++i) {
      total += dispatch.sequences[i][j];
      EXPECT_GE(dispatch.sequences[i][j], 0);
      const bool can_take = problem.replicas[i] > 0 && j < problem.costs[i].reach();
      EXPECT_TRUE(can_take || dispatch.sequences[i][j] == 0);
    }
    EXPECT_EQ(total, problem.sequences[j]);
  }
  EXPECT_EQ(dispatch.makespan, *std::max_element(dispatch.seconds.begin(), dispatch.seconds.end()));
  EXPECT_LE(dispatch.lower_bound, dispatch.makespan);
}

TEST(Dispatch, OfSmallCasesIsTheExhaustiveOptimum) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const RandomDeployment problem(seed, {.configurations = 3, .buckets = 3, .most_sequences = 7, .most_replicas = 3});
    const double best = exhaustive(problem.costs, problem.replicas, problem.sequences);
    const Dispatch dispatch =
        dispatch_balanced(problem.costs, problem.replicas, problem.sequences, {.gap = 0, .nodes = 10'000'000});
    expect_complete(dispatch, problem);
    ASSERT_NEAR(dispatch.makespan, best, 1e-9 * best) << seed;
    ASSERT_LE(dispatch.lower_bound, best * (1 + 1e-9)) << seed;
    ASSERT_GE(dispatch.lower_bound, best * (1 - 1e-6)) << seed;
  }
}

TEST(Dispatch, BoundsAndMakespansHoldOnRandomCases) {
  double worst = 0, sum = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const RandomDeployment problem(seed, {.configurations = 2 + seed % 4, .buckets = 2 + seed % 15, .most_sequences = 200, .most_replicas = 9});
    const Dispatch balanced = dispatch_balanced(problem.costs, problem.replicas, problem.sequences, {.nodes = 2000});
    const Dispatch greedy = dispatch_greedily(problem.costs, problem.replicas, problem.sequences);
    expect_complete(balanced, problem);
    expect_complete(greedy, problem);
    EXPECT_LE(balanced.makespan, greedy.makespan * (1 + 1e-9)) << seed;
    EXPECT_LE(greedy.lower_bound, balanced.makespan * (1 + 1e-9)) << seed;
    EXPECT_EQ(balanced, dispatch_balanced(problem.costs, problem.replicas, problem.sequences, {.nodes = 2000}));
    worst = std::max(worst, balanced.gap());
    sum += balanced.gap();
  }
  EXPECT_LT(worst, 0.35);  // where few replicas hold most of the rows, and nothing else may take them
  EXPECT_LT(sum / 300, 0.02);
}

TEST(Dispatch, IsWithinOnePercentOfTheOptimumOnPublishedLengths) {
  const auto document = nlohmann::json::parse(read_file(source_folder() / "tests/plan/data/dispatch_optima.json"));
  for (const auto& problem : document.at("problems")) {
    std::vector<BucketCosts> costs;
    for (const auto& seconds : problem.at("seconds")) costs.push_back({.seconds = seconds});
    if (problem.contains("fill")) {
      for (size_t i = 0; i < costs.size(); ++i) costs[i].devices = problem.at("devices")[i], costs[i].fill = problem.at("fill")[i];
    }
    const Dispatch dispatch = dispatch_balanced(costs, problem.at("replicas").get<std::vector<int64_t>>(),
                                                problem.at("sequences").get<std::vector<int64_t>>());
    const double optimum = problem.at("optimum");
    EXPECT_GE(dispatch.makespan, optimum * (1 - 2e-4));
    EXPECT_LE(dispatch.makespan, optimum * 1.01);
    EXPECT_LE(dispatch.lower_bound, optimum * (1 + 1e-9));
    EXPECT_GE(dispatch.lower_bound, optimum * 0.95);
  }
}

TEST(Dispatch, WithOneConfigurationIsUniform) {
  const std::vector<BucketCosts> costs = {{.devices = 2, .seconds = {1, 3}}};
  const Dispatch dispatch = dispatch_balanced(costs, std::vector<int64_t>{4}, std::vector<int64_t>{9, 4});
  EXPECT_EQ(dispatch.sequences, (std::vector<std::vector<int64_t>>{{9, 4}}));
  EXPECT_EQ(dispatch.makespan, 3 * 1 + 3);
  EXPECT_EQ(dispatch.lower_bound, dispatch.makespan);
}

TEST(Dispatch, RefusesABucketThatNothingHolds) {
  const std::vector<BucketCosts> costs = {{.devices = 1, .seconds = {1}}, {.devices = 2, .seconds = {1, 1}}};
  const std::vector<int64_t> sequences = {3, 1};
  EXPECT_THROW(dispatch_balanced(costs, std::vector<int64_t>{2, 0}, sequences), InternalError);
  EXPECT_THROW(dispatch_greedily(costs, std::vector<int64_t>{2, 0}, sequences), InternalError);
  EXPECT_EQ(dispatch_lower_bound(costs, std::vector<int64_t>{2, 0}, sequences, 10, 1e9),
            std::numeric_limits<double>::infinity());
}

TEST(Dispatch, OfNothingTakesNoTime) {
  const std::vector<BucketCosts> costs = {{.devices = 1, .seconds = {1, 2}}, {.devices = 2, .seconds = {1, 1}}};
  EXPECT_EQ(dispatch_balanced(costs, std::vector<int64_t>{2, 1}, std::vector<int64_t>{0, 0}).makespan, 0);
}

}  // namespace
}  // namespace cotune
