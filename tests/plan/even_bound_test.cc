#include "plan/deployment/even_bound.h"

#include <gtest/gtest.h>

#include "plan/deployment/deployment.h"
#include "plan/random_deployment.h"

namespace cotune {
namespace {

TEST(EvenBound, NeverRulesOutTheBestDeploymentOfSmallCases) {
  int64_t tight = 0, cases = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const RandomDeployment random(seed, {.configurations = 4, .buckets = 4, .most_sequences = 12});
    const int64_t devices = 8 + static_cast<int64_t>(seed % 9);
    const Deployment best = plan_deployment(random.costs, random.sequences, devices, {.filter = PlanFilter::none, .gap = 0});
    if (best.empty() || best.dispatch.makespan <= 0) continue;
    ++cases;
    EvenBound bound(random.costs, random.sequences, devices);
    EXPECT_FALSE(bound.rules_out(best.dispatch.makespan * (1 + 1e-9), 200, 100)) << seed;
    EvenBound again(random.costs, random.sequences, devices);
    tight += again.rules_out(0.6 * best.dispatch.makespan, 200, 50) ? 1 : 0;
  }
  EXPECT_GT(cases, 100);
  EXPECT_GT(tight, cases / 2);
}

TEST(EvenBound, CountsWhatManyReplicasCanTakeOfAFewSequences) {
  // Thirty replicas take one each of five long rows, which yields five, and ten each of 300 short ones: 11 s. Patterns of
  // their own would end within 10.2 s.
  const std::vector<BucketCosts> costs = {{.devices = 1, .seconds = {1, 1}}};
  const std::vector<int64_t> sequences = {300, 5};
  EvenBound bound(costs, sequences, 30);
  EXPECT_TRUE(bound.rules_out(10.95, 200, 0));
  EXPECT_FALSE(bound.rules_out(11.0, 200, 20));
}

TEST(EvenBound, DoesNotBreakLongSequences) {
  // Two configurations, a device each, three rows of 2 s: broken they would end within 3 s.
  const std::vector<BucketCosts> costs = {{.devices = 1, .seconds = {2}}, {.devices = 1, .seconds = {2}}};
  const std::vector<int64_t> sequences = {3};
  EvenBound bound(costs, sequences, 2);
  EXPECT_FALSE(bound.rules_out(3.01, 50, 0));
  EXPECT_TRUE(bound.rules_out(3.9, 0, 1));
  EXPECT_FALSE(bound.rules_out(4.01, 50, 50));
}

TEST(EvenBound, ProposesReplicasWithinTheDevices) {
  const RandomDeployment random(7, {.configurations = 5, .buckets = 6, .most_sequences = 40});
  EvenBound bound(random.costs, random.sequences, 64);
  EXPECT_TRUE(bound.rules_out(1e-3, 5, 5));
  EXPECT_FALSE(bound.rules_out(1e3, 5, 5));
  int64_t devices = 0;
  for (size_t i = 0; i < random.costs.size(); ++i) devices += bound.best_plan()[i] * random.costs[i].devices;
  EXPECT_LE(devices, 64);
}

}  // namespace
}  // namespace cotune
