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

TEST(DeploySystem, CountsIdleDevicesAndTasksInTurn) {
  const StepWork together = work_of({2048, 16384}, {40, 1}), one = work_of({2048}, {30}), two = work_of({2048, 16384}, {10, 1});
  const std::vector<StepWork> tasks = {one, two};
  const SystemDeployment fused = deploy_system(System::task_fused, together, {}, 20);
  ASSERT_EQ(fused.steps.size(), 1u);
  EXPECT_EQ(fused.steps[0].replicas[6], 2) << "four of twenty devices stay idle and are counted";
  EXPECT_NEAR(fused.gpu_seconds, 20 * fused.seconds, 1e-12);
  const SystemDeployment sequential = deploy_system(System::task_sequential, {}, tasks, 16);
  ASSERT_EQ(sequential.steps.size(), 2u);
  EXPECT_NEAR(sequential.seconds, deploy_alike(one, 16).dispatch.makespan + deploy_alike(two, 16).dispatch.makespan, 1e-12);
  EXPECT_TRUE(deploy_system(System::task_sequential, {}, tasks, 4).steps.empty()) << "nothing of four devices holds 16K";
}

TEST(DeploySystem, UnlikeReplicasAreNeverSlowerThanLikeOnes) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const RandomDeployment problem(seed, {.configurations = 3, .buckets = 4, .most_sequences = 12});
    const StepWork work{problem.costs, problem.sequences};
    const std::vector<StepWork> tasks = {work};
    for (const int64_t devices : {7, 12}) {
      const SystemDeployment alike = deploy_system(System::task_sequential, {}, tasks, devices);
      if (alike.steps.empty()) continue;
      const SystemDeployment unlike = deploy_system(System::lobra_sequential, {}, tasks, devices);
      EXPECT_LE(unlike.gpu_seconds, alike.gpu_seconds) << seed;
      EXPECT_EQ(unlike.gpu_seconds, deploy_system(System::lobra, work, {}, devices).gpu_seconds) << seed;
      EXPECT_LE(unlike.steps[0].lower_bound, unlike.steps[0].dispatch.makespan) << seed;
    }
  }
}

}  // namespace
}  // namespace cotune
