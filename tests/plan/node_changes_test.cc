#include "plan/node_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/plan_report.h"
#include "plan/planning_json.h"

namespace cotune {
namespace {

using testing::HasSubstr;

ClusterSpec nodes_of_a40(int64_t count, int64_t devices) {
  ClusterSpec cluster;
  cluster.nodes = {{.name = "box", .count = count, .devices = devices, .device = device_preset("A40"), .link = link_preset("pcie4")}};
  cluster.nodes[0].device.cost_per_hour = 1.5;
  if (count > 1) cluster.network = link_preset("infiniband-100");
  return cluster;
}

std::vector<JobShape> jobs_on(const ModelConfig& model) {
  std::vector<JobShape> jobs;
  for (int32_t j = 0; j < 2; ++j) {
    JobSpec spec;
    spec.adapter.r = 8;
    jobs.push_back({.name = "job-" + std::to_string(j), .batch_size = 32, .lengths = histogram_of(std::vector<int64_t>{100 + 200 * j, 400}),
                    .adapters = adapter_shapes(spec, j, model)});
  }
  return jobs;
}

TEST(NodeChanges, AreWhatPlanningSaysOfThatManyNodes) {
  const ModelConfig model = model_preset("tinyllama-1.1b");
  const std::vector<JobShape> jobs = jobs_on(model);
  const ClusterSpec cluster = nodes_of_a40(2, 2);
  const PlanningResult result = make_plan(model, cluster, jobs);
  const std::vector<NodeChange> changes = node_changes(model, cluster, jobs, {}, result);
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(to_json(result, node_changes(model, cluster, jobs, {.threads = 2}, result)), to_json(result, changes));
  for (const NodeChange& each : changes) {
    ASSERT_TRUE(each.fits()) << each.constraint;
    EXPECT_EQ(each.from, 2);
    ClusterSpec changed = cluster;
    changed.nodes[0].count = each.to;
    // All policies and orders in place of the few that are tried again.
    const PlanningResult again = make_plan(model, changed, jobs);
    EXPECT_NEAR(each.predicted.seconds, again.plan()->predicted.seconds, 0.01 * each.predicted.seconds);
    EXPECT_EQ(each.speed_up(result.plan()->predicted), result.plan()->predicted.seconds / each.predicted.seconds);
  }
  EXPECT_EQ(changes[0].to, 3);
  EXPECT_EQ(changes[1].to, 1);
  EXPECT_GT(changes[0].speed_up(result.plan()->predicted), 1.1);
  EXPECT_LT(changes[1].speed_up(result.plan()->predicted), 0.9);
  const std::string text = explain(changes, result.plan()->predicted);
  EXPECT_THAT(text, HasSubstr("One node of box more or fewer than 2:\n  3: "));
  const auto json = to_json(result, changes);
  EXPECT_EQ(json["node_changes"][1]["to"], 1);
  EXPECT_EQ(json["node_changes"][0]["predicted"]["seconds"], changes[0].predicted.seconds);
}

TEST(NodeChanges, OfOneNodeAreOneMoreOverANetworkThatIsAssumed) {
  const ModelConfig model = model_preset("tinyllama-1.1b");
  const std::vector<JobShape> jobs = jobs_on(model);
  const ClusterSpec cluster = nodes_of_a40(1, 2);
  const PlanningResult result = make_plan(model, cluster, jobs);
  const std::vector<NodeChange> changes = node_changes(model, cluster, jobs, {}, result);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].to, 2);
  EXPECT_GT(changes[0].predicted.exchange_s, 0);
}

/// What is best on two nodes is an order for few microbatches, which the plans of one and of three are not in.
TEST(NodeChanges, SayOfANumberOfNodesWhatItsOwnPlanDoes) {
  const ModelConfig model = model_preset("llama-2-13b");
  JobSpec spec;
  spec.adapter.r = 8;
  const std::vector<JobShape> jobs = {
      {.name = "a", .batch_size = 8, .lengths = histogram_of(std::vector<int64_t>{128, 128, 128, 256}), .adapters = adapter_shapes(spec, 0, model)},
      {.name = "b", .batch_size = 4, .lengths = histogram_of(std::vector<int64_t>{1024, 1024, 1024, 2048}), .adapters = adapter_shapes(spec, 1, model)}};
  std::vector<ClusterSpec> clusters;
  std::vector<PlanningResult> results;
  for (const int64_t nodes : {1, 2, 3}) {
    ClusterSpec& cluster = clusters.emplace_back(nodes_of_a40(nodes, 8));
    cluster.network = link_preset("ethernet-10");
    results.push_back(make_plan(model, cluster, jobs));
    ASSERT_NE(results.back().plan(), nullptr);
  }
  const double of_two = results[1].plan()->predicted.seconds;
  for (const size_t from : {size_t{0}, size_t{2}}) {
    for (const NodeChange& each : node_changes(model, clusters[from], jobs, {}, results[from])) {
      if (each.to == 2) {
        EXPECT_NEAR(each.predicted.seconds, of_two, 0.002 * of_two) << from + 1;
      }
    }
  }
}

TEST(NodeChanges, SayWhatNoLongerFits) {
  const ModelConfig model = model_preset("llama-2-70b");
  JobSpec spec;
  const std::vector<JobShape> jobs = {
      {.name = "a", .batch_size = 8, .lengths = histogram_of(std::vector<int64_t>{512}), .adapters = adapter_shapes(spec, 0, model)}};
  const ClusterSpec cluster = nodes_of_a40(2, 2);
  const PlanningResult result = make_plan(model, cluster, jobs);
  ASSERT_NE(result.plan(), nullptr);
  const std::vector<NodeChange> changes = node_changes(model, cluster, jobs, {}, result);
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_FALSE(changes[1].fits());
  EXPECT_EQ(changes[1].speed_up(result.plan()->predicted), 0);
  EXPECT_THAT(explain(changes, result.plan()->predicted), HasSubstr("  1: out of memory"));
}

TEST(NodeChanges, AreNoneWhereThereIsNoPlan) {
  const ModelConfig model = model_preset("llama-2-70b");
  JobSpec spec;
  const std::vector<JobShape> jobs = {
      {.name = "a", .batch_size = 8, .lengths = histogram_of(std::vector<int64_t>{512}), .adapters = adapter_shapes(spec, 0, model)}};
  const ClusterSpec cluster = nodes_of_a40(1, 1);
  EXPECT_TRUE(node_changes(model, cluster, jobs, {}, make_plan(model, cluster, jobs)).empty());
}

}  // namespace
}  // namespace cotune
