#include "plan/deployment/system_deployments.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/cost/published_rates.h"
#include "plan/random_deployment.h"

namespace cotune {
namespace {

using Counts = std::vector<int64_t>;

StepWork work_of(const std::vector<int64_t>& lengths, Counts sequences) {
  return {bucket_costs(published_7b_configurations(), lengths), std::move(sequences)};
}

TEST(DeployAlike, OfTheWorkedExampleIsTwoReplicasOfTheLongestConfiguration) {
  // 98 + 31 + 8 + 2 sequences each at 2048/(8·2790), 4096/(8·2710), … seconds.
  const Deployment plan = deploy_alike(work_of({2048, 4096, 8192, 16384}, {196, 62, 16, 4}), 16);
  EXPECT_NEAR(plan.dispatch.makespan, 19.81, 0.005);
  EXPECT_EQ(std::count_if(plan.replicas.begin(), plan.replicas.end(), [](int64_t count) { return count > 0; }), 1);
  EXPECT_EQ(plan.replicas[6], 2) << "<8,1>";
}

TEST(DeployAlike, NeverTakesAConfigurationOfLessReachForALongerTask) {
  // <1,1>, <1,2>, <1,4> hold 2K, 2K and 4K; the fastest that holds the task's longest row is taken.
  const std::vector<Configuration> configurations = published_7b_configurations();
  int64_t reach_before = 0;
  for (const int64_t longest : {2048, 4096, 8192, 16384}) {
    const Deployment plan = deploy_alike(work_of({longest}, {64}), 16);
    ASSERT_FALSE(plan.empty());
    const auto chosen = static_cast<size_t>(std::find_if(plan.replicas.begin(), plan.replicas.end(), [](int64_t p) { return p > 0; }) - plan.replicas.begin());
    EXPECT_GE(configurations[chosen].chunk_tokens, std::max(longest, reach_before));
    reach_before = configurations[chosen].chunk_tokens;
  }
  EXPECT_TRUE(deploy_alike(work_of({2048}, {64}), 0).empty());
}

TEST(DeployAlike, LeavesDevicesIdleThatMakeNoFurtherReplica) {
  const StepWork work = work_of({2048, 16384}, {40, 1});
  EXPECT_EQ(deploy_alike(work, 20).replicas, deploy_alike(work, 16).replicas) << "four of twenty devices stay idle";
  EXPECT_EQ(deploy_alike(work, 20).replicas[6], 2);
  EXPECT_TRUE(deploy_alike(work, 4).empty()) << "nothing of four devices holds 16K";
}

TEST(DeployUnlike, IsNeverSlowerThanLikeReplicas) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const RandomDeployment problem(seed, {.configurations = 3, .buckets = 4, .most_sequences = 12});
    const StepWork work{problem.costs, problem.sequences};
    for (const int64_t devices : {7, 12}) {
      const Deployment alike = deploy_alike(work, devices);
      if (alike.empty()) continue;
      const Deployment unlike = deploy_unlike(work, devices);
      EXPECT_LE(unlike.dispatch.makespan, alike.dispatch.makespan) << seed;
      EXPECT_LE(unlike.lower_bound, unlike.dispatch.makespan) << seed;
    }
  }
}

}  // namespace
}  // namespace cotune
