#include <gtest/gtest.h>

#include "plan/random_planning.h"

namespace cotune {
namespace {

/// The estimates decide what is simulated in full; so what they miss is lost.
TEST(MakePlan, FindsWhatTheSimulatorPrefersAmongAllDeployments) {
  double sum = 0, worst = 0;
  int64_t cases = 0, looked_at = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const PlanningProblem problem = random_planning_problem(seed);
    if (problem.cluster.device_count() > 4) continue;
    const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
    const double best = best_of_all_deployments(problem, looked_at);
    ASSERT_EQ(result.plan() != nullptr, best > 0) << seed;
    if (result.plan() == nullptr) continue;
    ++cases;
    const double gap = result.plan()->predicted.seconds / best - 1;
    EXPECT_LT(gap, 0.10) << seed;  // seed 29: 7.2 %
    sum += gap;
    worst = std::max(worst, gap);
  }
  EXPECT_GT(cases, 20);
  EXPECT_GT(looked_at, 5 * cases);
  EXPECT_LT(sum / static_cast<double>(cases), 0.005);
  RecordProperty("worst_percent", std::to_string(100 * worst));
}

/// Four A40 and rows that one of them holds: a pipeline of four, fed small microbatches, ends before four devices by themselves.
TEST(MakePlan, LooksAtPipelinesBySimulation) {
  const PlanningProblem problem = [] {
    PlanningProblem each = random_planning_problem(1);
    each.cluster.nodes.front().count = 1;
    each.cluster.nodes.front().devices = 4;
    return each;
  }();
  const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
  ASSERT_NE(result.plan(), nullptr);
  bool has_pipeline = false;
  for (const ConsideredDeployment& each : result.deployments) {
    has_pipeline = has_pipeline || (each.replicas == "<1,4>×1" && each.estimated_s > 0);
  }
  EXPECT_TRUE(has_pipeline);
}

}  // namespace
}  // namespace cotune
