#include "plan/cost/measured_collectives.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "plan/cost/measured_times.h"
#include "plan/cost/operator_seconds.h"
#include "plan/cost/weight_sharding.h"
#include "plan/plan_totals.h"
#include "plan/replica_planner.h"
#include "plan/shapes/typical_step.h"
#include "plan/synthetic_profile.h"
#include "schedule/sequence_parallel.h"

namespace cotune {
namespace {

constexpr CollectiveKind message = CollectiveKind::message, all_reduce = CollectiveKind::all_reduce,
                         reduce_scatter = CollectiveKind::reduce_scatter, all_gather = CollectiveKind::all_gather;

/// Of the usual sizes, each on the line.
std::vector<ProfiledCollective> on_a_line(CollectiveKind kind, int64_t ranks, double latency_s, double bytes_per_s) {
  std::vector<ProfiledCollective> sizes;
  for (const int64_t bytes : measured_sizes(4 << 20)) {
    sizes.push_back({kind, ranks, bytes, latency_s + static_cast<double>(bytes) / bytes_per_s, 0.1, 5});
  }
  return sizes;
}

std::vector<ProfiledCollective> together(std::initializer_list<std::vector<ProfiledCollective>> lines) {
  std::vector<ProfiledCollective> all;
  for (const auto& line : lines) all.insert(all.end(), line.begin(), line.end());
  return all;
}

TEST(MeasuredCollectives, RecoverPlantedLatenciesAndBandwidths) {
  const auto planted = together({on_a_line(message, 2, 3e-5, 2e9), on_a_line(all_reduce, 2, 1e-4, 1e9), on_a_line(all_reduce, 4, 4e-4, 3e8)});
  const MeasuredCollectives exact(planted);
  ASSERT_EQ(exact.fits().size(), 3u);
  const CollectiveFit& four = exact.fits().at({all_reduce, 4});
  EXPECT_NEAR(four.time.latency_s, 4e-4, 1e-9);
  EXPECT_NEAR(four.time.seconds_per_byte, 1 / 3e8, 1e-14);
  EXPECT_NEAR(four.worst_error, 0, 1e-9);
  EXPECT_NEAR(four.mean_spread, 0.1, 1e-12);
  std::vector<ProfiledCollective> noisy = planted;
  for (size_t i = 0; i < noisy.size(); ++i) noisy[i].median *= 1 + 0.1 * (2 * uniform(3, i) - 1);
  const MeasuredCollectives near(noisy);
  for (const auto& [key, fit] : near.fits()) {
    EXPECT_NEAR(fit.time.latency_s / exact.fits().at(key).time.latency_s, 1, 0.12);
    EXPECT_NEAR(fit.time.seconds_per_byte / exact.fits().at(key).time.seconds_per_byte, 1, 0.12);
    EXPECT_GT(fit.mean_error, 0.001);
    EXPECT_LE(fit.mean_error, fit.worst_error);
    EXPECT_LT(fit.worst_error, 0.2);
  }
}

TEST(MeasuredCollectives, AreNeverNegative) {
  std::vector<ProfiledCollective> falling, steep;
  for (const int64_t bytes : {64, 4096, 1 << 20}) {
    falling.push_back({message, 2, bytes, 1.0 / static_cast<double>(bytes), 0, 1});
    steep.push_back({message, 2, bytes, 1e-15 * std::pow(static_cast<double>(bytes), 2), 0, 1});
  }
  const LinkSpec even = MeasuredCollectives(falling).over({.bandwidth = 1, .latency = 1});
  EXPECT_TRUE(std::isinf(even.bandwidth)) << "larger messages took no longer";
  EXPECT_GT(even.latency, 0);
  EXPECT_EQ(even.seconds(1e9), even.latency);
  const LinkSpec rising = MeasuredCollectives(steep).over({.bandwidth = 1, .latency = 1});
  EXPECT_GE(rising.latency, 0);
  EXPECT_GT(rising.bandwidth, 1);
  EXPECT_TRUE(MeasuredCollectives(std::vector<ProfiledCollective>{{message, 2, 64, 0, 0, 1}}).fits().empty()) << "nothing takes no time";
}

TEST(MeasuredCollectives, TakeThePlaceOfAClusterFilesLinksWithinNodes) {
  const LinkSpec pcie = link_preset("pcie4"), network = link_preset("infiniband-100");
  const ClusterSpec cluster{.nodes = {{.name = "pair", .count = 2, .devices = 2, .device = device_preset("A40"), .link = pcie},
                                      {.name = "single", .device = device_preset("A40")}},
                            .network = network};
  const ClusterSpec measured = with_measured_links(
      cluster, MeasuredCollectives(together({on_a_line(message, 2, 3e-5, 2e9), on_a_line(all_gather, 2, 5e-5, 1e9)})));
  EXPECT_NEAR(measured.nodes[0].link.latency, 3e-5, 1e-10);
  EXPECT_NEAR(measured.nodes[0].link.bandwidth, 2e9, 1);
  EXPECT_NEAR(all_gather_seconds(1e6, 2, measured.nodes[0].link), 5e-5 + 1e-3, 1e-8);
  EXPECT_EQ(measured.nodes[1], cluster.nodes[1]) << "where there is one device, there is no link";
  EXPECT_EQ(measured.network, network);
  EXPECT_EQ(with_measured_links(cluster, {}), cluster);
  const LinkSpec collectives_alone = MeasuredCollectives(on_a_line(all_reduce, 2, 1, 1e3)).over(pcie);
  EXPECT_EQ(collectives_alone.seconds(1000), pcie.seconds(1000)) << "no messages were measured";
}

TEST(MeasuredCollectives, TakeThePlaceOfRingsOfAsManyRanksAlone) {
  const LinkSpec pcie = link_preset("pcie4");
  const LinkSpec link = MeasuredCollectives(together({on_a_line(all_reduce, 2, 0.5, 100), on_a_line(all_gather, 4, 0.25, 50)})).over(pcie);
  EXPECT_NEAR(all_reduce_seconds(400, 2, link), 0.5 + 4, 1e-6);
  EXPECT_EQ(all_reduce_seconds(400, 1, link), 0);
  EXPECT_EQ(all_reduce_seconds(400, 4, link), all_reduce_seconds(400, 4, pcie));
  EXPECT_NEAR(all_gather_seconds(400, 4, link), 0.25 + 8, 1e-6);
  EXPECT_EQ(all_gather_seconds(400, 2, link), all_gather_seconds(400, 2, pcie));
  const LinkSpec slow = link.slowed_by(3);
  EXPECT_NEAR(all_reduce_seconds(400, 2, slow), 3 * 4.5, 1e-5);
  EXPECT_NEAR(slow.seconds(1e6), 3 * pcie.seconds(1e6), 1e-12);
}

/// Sums travel as accumulations, gathers in the compute dtype.
TEST(MeasuredCollectives, OfRanksThatDivideLayersAreOfTheBytesThatTravel) {
  ModelConfig model = model_preset("tinyllama-1.1b");
  model.layer_count = 1;
  StageMachine machine{.device = device_preset("A40"), .link = link_preset("pcie4")};
  machine.link = MeasuredCollectives(together({on_a_line(all_reduce, 2, 0, 1e3), on_a_line(reduce_scatter, 2, 0, 1e4), on_a_line(all_gather, 2, 0, 1e5)}))
                     .over(machine.link);
  constexpr int64_t tokens = 10;
  for (const auto& [dtype, size] : {std::pair{"bfloat16", 2}, std::pair{"float32", 4}}) {
    machine.dtype = dtype;
    for (const bool divides : {false, true}) {
      const StageShape stage{0, 1, true, true, 2, divides};
      int checked = 0;
      for (const Operator& op : stage_operators(model, stage, std::vector<AdapterShape>{}, Direction::forward)) {
        if (!op.communicates) continue;
        const auto values = static_cast<double>(tokens * collective_columns(model, stage, op));
        const Collective kind = collective_of(stage, op);
        const double expected = kind == Collective::all_reduce       ? values * 4 / 1e3
                                : kind == Collective::reduce_scatter ? values * 4 / 1e4
                                                                     : values * size / 1e5;
        EXPECT_NEAR(collective_seconds(model, stage, op, tokens, machine) / expected, 1, 1e-6) << op.name() << ", " << dtype;
        ++checked;
      }
      EXPECT_GE(checked, 2);
    }
    EXPECT_NEAR(sum_seconds(1000, 2, machine), 4, 1e-6) << dtype;
  }
}

/// The same profile but for its collectives.
TEST(PlanReplica, OfAProfileWithASlowLinkIsPredictedToTakeLonger) {
  ModelConfig model = model_preset("smollm2-135m");
  model.layer_count = 8;
  JobSpec spec;
  spec.adapter.r = 8;
  const std::vector<JobShape> jobs = {
      {.name = "only", .batch_size = 8, .lengths = histogram_of(std::vector<int64_t>{200}), .adapters = adapter_shapes(spec, 0, model)}};
  const ClusterSpec cluster{.nodes = {{.name = "n", .devices = 2, .device = device_preset("A40"), .link = link_preset("pcie4")}}, .network = {}};
  PlannedReplica pipeline{.token_budget = 400, .rows = typical_step(jobs)};
  pipeline.stages = {{.shape = {0, 4, true, false}, .devices = {{"n", 0, 0}}}, {.shape = {4, 8, false, true}, .devices = {{"n", 0, 1}}}};
  Plan copies;
  for (const int64_t device : {0, 1}) {
    PlannedReplica& each = copies.replicas.emplace_back();
    each.stages = {{.shape = {0, 8, true, true}, .devices = {{"n", 0, device}}}};
  }
  struct Predicted {
    double pipeline_s = 0, exchange_s = 0;
  };
  const auto predicted = [&](std::vector<ProfiledCollective> collectives) {
    Profile profile = synthetic_profile(model, 0);
    profile.collectives = std::move(collectives);
    const MeasuredTimes times(profile, model, "profile.json");
    PlanOptions options;
    options.measured = &times;
    const ClusterSpec linked = with_measured_links(cluster, times.collectives());
    ReplicaPlanner planner(model, linked, linked.nodes[0], jobs, options, false);
    const ReplicaChoice choice = planner.plan(pipeline, Sharing::batch_all, {PipelineOrder::one_f_one_b}).front();
    EXPECT_EQ(choice.constraint, "");
    return Predicted{choice.replica.seconds, exchange_seconds(copies, model, jobs, exchange_link(copies, linked))};
  };
  const Predicted by_file = predicted({});
  const Predicted fast = predicted(together({on_a_line(message, 2, 1e-9, 1e15), on_a_line(all_reduce, 2, 1e-9, 1e15)}));
  const Predicted slow_messages = predicted(on_a_line(message, 2, 0.5, 1e9)), slow_sums = predicted(on_a_line(all_reduce, 2, 0.5, 1e9));
  EXPECT_LT(fast.pipeline_s, by_file.pipeline_s);
  EXPECT_LT(fast.exchange_s, by_file.exchange_s);
  // At least one activation and one error lie on the way of a step.
  EXPECT_GT(slow_messages.pipeline_s, by_file.pipeline_s + 0.9);
  EXPECT_EQ(slow_sums.pipeline_s, by_file.pipeline_s);
  EXPECT_GT(slow_sums.exchange_s, 0.5);
  EXPECT_LT(slow_sums.exchange_s, 0.51);
}

}  // namespace
}  // namespace cotune
