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
    EXPECT_LT(gap, 0.01) << seed;
    sum += gap;
    worst = std::max(worst, gap);
  }
  EXPECT_GT(cases, 20);
  EXPECT_GT(looked_at, 5 * cases);
  EXPECT_LT(sum / static_cast<double>(cases), 0.005);
  RecordProperty("worst_percent", std::to_string(100 * worst));
}

/// Three devices: pipelines of three stages, and replicas of two beside one.
TEST(MakePlan, FindsWhatTheSimulatorPrefersOnAnOddNumberOfDevices) {
  double sum = 0;
  int64_t cases = 0, looked_at = 0;
  for (uint64_t seed = 100; seed < 125; ++seed) {
    PlanningProblem problem = random_planning_problem(seed);
    problem.cluster.nodes.front().count = 1;
    problem.cluster.nodes.front().devices = 3;
    const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
    const double best = best_of_all_deployments(problem, looked_at);
    ASSERT_EQ(result.plan() != nullptr, best > 0) << seed;
    if (result.plan() == nullptr) continue;
    ++cases;
    const double gap = result.plan()->predicted.seconds / best - 1;
    EXPECT_LT(gap, 0.01) << seed;
    sum += gap;
  }
  EXPECT_GT(cases, 20);
  EXPECT_LT(sum / static_cast<double>(cases), 0.002);
}

/// 61 GiB of weights, two devices of which have 74 GiB.
TEST(MakePlan, CutsALargeModelIntoAsManyStagesAsTheNodeHasDevices) {
  PlanningProblem problem{.model = model_preset("qwen2.5-32b"), .cluster = {}, .jobs = {}, .options = hybrid_in_the_default_order()};
  add_job(problem, JobSpec(), {200, 300, 600}, 16);
  for (const int64_t devices : {3, 5, 6, 7}) {
    problem.cluster.nodes = {{.name = "n", .count = 1, .devices = devices, .device = device_preset("A100-40"), .link = link_preset("nvlink-600")}};
    const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
    ASSERT_NE(result.plan(), nullptr) << devices;
    bool has_all = false;
    for (const ConsideredConfiguration& each : result.configurations) {
      has_all = has_all || (each.tensor_parallel == 1 && each.pipeline_stages == devices && each.longest_row >= 600);
    }
    EXPECT_TRUE(has_all) << devices;
  }
}

/// Two nodes of six devices over Ethernet: twelve replicas would wait for the exchange of their gradients.
PlanningProblem slow_network(int64_t nodes) {
  PlanningProblem problem{.model = model_preset("llama-2-13b"), .cluster = {}, .jobs = {}, .options = hybrid_in_the_default_order()};
  problem.cluster.nodes = {{.name = "n", .count = nodes, .devices = 6, .device = device_preset("A40"), .link = link_preset("pcie4")}};
  problem.cluster.network = link_preset("ethernet-10");
  JobSpec spec;
  spec.adapter.r = 8;
  add_job(problem, spec, {128, 128, 128, 256}, 8);
  add_job(problem, spec, {1024, 1024, 1024, 2048}, 4);
  return problem;
}

TEST(MakePlan, LeavesANodeIdleWhereTheExchangeTakesMoreThanItsDevicesSave) {
  const PlanningProblem one = slow_network(1), two = slow_network(2);
  const PlanningResult on_one = make_plan(one.model, one.cluster, one.jobs, one.options);
  const PlanningResult on_two = make_plan(two.model, two.cluster, two.jobs, two.options);
  ASSERT_NE(on_one.plan(), nullptr);
  ASSERT_NE(on_two.plan(), nullptr);
  EXPECT_LE(on_two.plan()->predicted.seconds, on_one.plan()->predicted.seconds * 1.0001);
  // Devices that idle are paid for.
  EXPECT_DOUBLE_EQ(on_two.plan()->predicted.device_seconds, 12 * on_two.plan()->predicted.seconds);
}

/// Weights over copies of two take four devices of six: as many sets as nodes.
TEST(MakePlan, PutsReplicasOnWholeNodesWhereTheyDoNotFillThem) {
  PlanningProblem problem{.model = model_preset("qwen2.5-32b"), .cluster = {}, .jobs = {}, .options = {}};
  DeviceSpec device = device_preset("A40");
  device.memory_bytes = int64_t{28} << 30;
  problem.cluster.nodes = {{.name = "n", .count = 2, .devices = 6, .device = device, .link = link_preset("pcie4")}};
  problem.cluster.network = link_preset("infiniband-200");
  JobSpec spec;
  add_job(problem, spec, {128, 128, 128, 256}, 8);
  const PlanningResult both = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
  problem.cluster.nodes.front().count = 1;
  const PlanningResult one = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
  ASSERT_NE(both.plan(), nullptr);
  ASSERT_NE(one.plan(), nullptr);
  EXPECT_LE(both.plan()->predicted.seconds, one.plan()->predicted.seconds * 1.01);
  for (const Alternative& each : both.alternatives) EXPECT_EQ(each.constraint.find("do not lie on whole nodes"), std::string::npos);
}

TEST(MakePlan, IsNoSlowerWithMoreNodes) {
  for (uint64_t seed = 400; seed < 430; ++seed) {
    PlanningProblem problem = random_planning_problem(seed);
    problem.cluster.network = link_preset(seed % 3 == 0 ? "ethernet-1" : seed % 3 == 1 ? "ethernet-10" : "infiniband-100");
    double before = 0;
    for (const int64_t nodes : {1, 2, 3}) {
      problem.cluster.nodes.front().count = nodes;
      const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
      if (result.plan() == nullptr) continue;
      const double seconds = result.plan()->predicted.seconds;
      if (before > 0) {
        EXPECT_LE(seconds, before * 1.02) << seed << ", " << nodes << " nodes";
      }
      before = seconds;
    }
  }
}

TEST(MakePlan, SaysOfOneJobNothingOfOneAfterTheOther) {
  PlanningProblem problem = slow_network(1);
  problem.jobs.pop_back();
  problem.options.deployments.assign(std::begin(all_systems), std::end(all_systems));
  const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
  for (const Alternative& each : result.alternatives) EXPECT_EQ(each.rejected_for.find("one after the other"), std::string::npos);
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
