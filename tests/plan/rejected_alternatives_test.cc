#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/deployment/placement.h"
#include "plan/planning_json.h"
#include "plan/random_planning.h"
#include "plan/replica_models.h"

namespace cotune {
namespace {

/// `<2,1>×3, <1,1>×2` as counts.
std::vector<int64_t> counts_of(const std::string& text, const std::vector<Configuration>& configurations) {
  std::vector<int64_t> counts;
  for (const Configuration& each : configurations) {
    const std::string name = each.name() + "×";
    size_t at = text.find(name);
    counts.push_back(at == std::string::npos ? 0 : std::stoll(text.substr(at + name.size())));
  }
  return counts;
}

TEST(RejectedAlternatives, DeploymentsHaveTheSecondsThatTheirCountsGive) {
  int64_t estimated = 0, simulated = 0;
  for (uint64_t seed = 200; seed < 215; ++seed) {
    const PlanningProblem problem = random_planning_problem(seed);
    const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
    NodesPlanner planner(problem.model, problem.cluster, problem.cluster.nodes.front(), problem.jobs, problem.options, {});
    for (const ConsideredDeployment& each : result.deployments) {
      const std::vector<int64_t> counts = counts_of(each.replicas, planner.configurations());
      const ConsideredDeployment again = planner.estimate(each.system, counts);
      EXPECT_EQ(again.replicas, each.replicas) << seed;
      EXPECT_EQ(again.dispatch_s, each.dispatch_s) << seed << " " << each.replicas;
      EXPECT_EQ(again.estimated_s, each.estimated_s) << seed << " " << each.replicas;
      ++estimated;
      if (!each.rejected_for.empty()) {
        EXPECT_THAT(each.rejected_for, testing::HasSubstr("its estimate is "));
        EXPECT_EQ(each.simulated_s, 0);
        continue;
      }
      double fastest = 0;
      for (const PipelineOrder order : {PipelineOrder::automatic, PipelineOrder::interleaved, PipelineOrder::split}) {
        const Alternative full = planner.simulate(each.system, counts, Sharing::hybrid, order);
        if (full.fits()) fastest = fastest == 0 ? full.predicted.seconds : std::min(fastest, full.predicted.seconds);
      }
      EXPECT_EQ(fastest, each.simulated_s) << seed << " " << each.replicas;
      ++simulated;
    }
    // Every configuration that holds all rows is there as like replicas.
    for (size_t i = 0; i < planner.configurations().size(); ++i) {
      std::vector<int64_t> alike(planner.configurations().size(), 0);
      alike[i] = problem.cluster.device_count() / planner.configurations()[i].devices();
      if (alike[i] == 0 || !planner.holds_all_rows(alike)) continue;
      const std::string text = planner.configurations()[i].name() + "×" + std::to_string(alike[i]);
      EXPECT_TRUE(std::any_of(result.deployments.begin(), result.deployments.end(),
                              [&](const ConsideredDeployment& each) { return each.replicas == text; }))
          << seed << " " << text;
    }
  }
  EXPECT_GT(estimated, 50);
  EXPECT_GT(simulated, 30);
}

TEST(RejectedAlternatives, GroupingsHaveTheSecondsAndMemoryThatTheyGive) {
  int64_t rejected = 0;
  for (uint64_t seed = 230; seed < 250; ++seed) {
    const PlanningProblem problem = random_planning_problem(seed);
    const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
    if (result.plan() == nullptr) continue;
    const Plan& plan = *result.plan();
    const std::vector<ReplicaModel> models = replica_models(plan, problem.model, problem.cluster, problem.jobs);
    int64_t taken = 0;
    for (const ConsideredGrouping& each : result.groupings) {
      const PlannedReplica& replica = plan.replicas[each.replica];
      ReplicaPacking packing = packing_of(plan, replica);
      packing.hybrid_tasks = each.hybrid_tasks;
      packing.buckets = each.buckets;
      packing.least_microbatches = each.least_microbatches;
      const PricedRows priced =
          price_rows(models[each.replica], result.alternatives[*result.chosen].rows.front()[each.replica], packing);
      const ReplicaPrediction prediction = predict_replica(models[each.replica], priced, plan.order, problem.options.rounds);
      EXPECT_EQ(prediction.constraint, each.constraint) << seed;
      EXPECT_EQ(prediction.fullest_bytes(), each.fullest_bytes) << seed;
      if (each.constraint.empty()) {
        EXPECT_EQ(prediction.seconds, each.seconds) << seed;
      }
      if (each.rejected_for.empty()) {
        ++taken;
        EXPECT_EQ(each.seconds, replica.seconds) << seed;
      } else {
        ++rejected;
      }
    }
    EXPECT_GE(taken, 1) << seed;
  }
  EXPECT_GT(rejected, 10);
}

TEST(RejectedAlternatives, KindsOfNodesThatLoseAreThere) {
  PlanningProblem problem = random_planning_problem(3);
  problem.cluster.nodes.push_back(problem.cluster.nodes.front());
  problem.cluster.nodes.back().name = "fast";
  problem.cluster.nodes.back().device = device_preset("H100");
  const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
  ASSERT_NE(result.plan(), nullptr);
  EXPECT_EQ(result.alternatives[*result.chosen].nodes, "fast");
  int64_t slow = 0;
  const nlohmann::ordered_json json = to_json(result, {});
  for (const auto& each : json.at("alternatives")) {
    if (each.at("nodes") != "n") continue;
    ++slow;
    EXPECT_NE(each.at("rejected_for"), "");
  }
  EXPECT_GE(slow, 2);
}

}  // namespace
}  // namespace cotune
