#include "cluster/replanned_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"
#include "cluster/trace_charts.h"

namespace cotune {
namespace {

/// Jobs on four small devices, of which one alone holds short rows only.
struct ReplannedCase {
  ModelConfig model = model_preset("tinyllama-1.1b");
  ClusterSpec cluster;
  Trace trace;
  std::vector<double> dedicated_round_s;

  ReplannedCase() {
    cluster.nodes = {{.name = "n", .count = 1, .devices = 4, .device = device_preset("A40"), .link = link_preset("pcie4")}};
    cluster.nodes[0].device.memory_bytes = int64_t{5} << 29;
    trace.tenants = {"default"};
    trace.kinds = {{8, 128, AdapterMethod::lora, 8}, {16, 64, AdapterMethod::lora, 16}, {4, 2048, AdapterMethod::lora, 8}};
    dedicated_round_s = {0.2, 0.2, 0.5};
  }
  void add(int32_t kind, double arrival_s, double duration_s, double stops_after = 1) {
    trace.jobs.push_back({.name = "j" + std::to_string(trace.jobs.size()), .kind = kind, .arrival_s = arrival_s, .duration_s = duration_s, .stops_after = stops_after});
  }
  /// Of jobs that no replica holds.
  int32_t add_hopeless_kind() {
    trace.kinds.push_back({4, 2048, AdapterMethod::lora, 4096});
    dedicated_round_s.push_back(1);
    return static_cast<int32_t>(trace.kinds.size()) - 1;
  }
  ReplannedTrace run(MoveRule rule, double restart_s = 10) const {
    ReplanSettings settings{.rule = rule};
    settings.costs.restart_seconds = restart_s;
    return replan_trace(trace, model, cluster, cluster.nodes[0], dedicated_round_s, settings);
  }
};

constexpr MoveRule rules[] = {MoveRule::when_forced, MoveRule::when_it_pays, MoveRule::always};

TEST(ReplanTrace, OneJobTakesItsStepsAfterTheReplicasAreUp) {
  ReplannedCase one;
  one.add(0, 100, 60);
  const ReplannedTrace result = one.run(MoveRule::when_it_pays);
  ASSERT_EQ(result.events.size(), 1u);
  const ReplanEvent& event = result.events[0];
  EXPECT_EQ(event.decision, ReplanDecision::must_move) << "nothing runs yet";
  EXPECT_EQ(result.jobs[0].steps, 300);
  EXPECT_NEAR(result.jobs[0].finished_s, 100 + event.move_s + 300 * event.best_s, 1e-6);
  EXPECT_NEAR(result.tokens, 300 * 8 * 128, 1e-3);
  EXPECT_EQ(result.moving_s, event.move_s);
}

TEST(ReplanTrace, AJobOfLongRowsForcesAMoveAndItsExitAllowsOneBackWhereThatPays) {
  ReplannedCase problem;
  problem.add(0, 0, 40000);
  problem.add(2, 500, 100);
  const ReplannedTrace stays = problem.run(MoveRule::when_forced), moves = problem.run(MoveRule::when_it_pays);
  ASSERT_GE(stays.moves, 2) << "up, and for the long rows";
  EXPECT_EQ(stays.moves, stays.forced);
  EXPECT_EQ(moves.moves, stays.moves + 1) << "back to the first replicas once the long rows are gone";
  EXPECT_EQ(moves.events.back().replicas, moves.events.front().replicas);
  EXPECT_LT(moves.end_s, stays.end_s);
  // Where putting replicas up takes longer than they save, they stay.
  EXPECT_EQ(problem.run(MoveRule::when_it_pays, 1e6).moves, stays.moves);
}

TEST(ReplanTrace, RefusesWhatNoReplicaHolds) {
  ReplannedCase problem;
  const int32_t hopeless = problem.add_hopeless_kind();
  problem.add(hopeless, 0, 100);
  problem.add(0, 1, 100);
  const ReplannedTrace result = problem.run(MoveRule::when_it_pays);
  EXPECT_EQ(result.finished(), 1);
  EXPECT_GT(result.jobs[0].finished_s, 1e300);
  EXPECT_THAT(to_text(std::vector{result}, problem.trace), testing::HasSubstr("when it pays"));
}

TEST(ReplanTrace, AJobThatNoReplicaHoldsKeepsNobodyWaiting) {
  ReplannedCase problem;
  const int32_t hopeless = problem.add_hopeless_kind();
  problem.add(0, 0, 10000);
  problem.add(hopeless, 1, 100);
  problem.add(0, 2, 100);
  const ReplannedTrace result = problem.run(MoveRule::when_it_pays);
  EXPECT_EQ(result.jobs[1].steps, 0);
  EXPECT_EQ(result.jobs[2].started_s, 2);
  const ReplannedTrace all[] = {result};
  EXPECT_LT(timeline_chart(all, problem.trace).size(), 100'000u);
}

TEST(ReplanTrace, TakesRowsBeyondWhatChunksUsuallyAre) {
  ReplannedCase problem;
  problem.model.context_length = 32768;
  problem.cluster.nodes[0].device.memory_bytes = int64_t{40} << 30;
  problem.trace.kinds = {{1, 20000, AdapterMethod::lora, 8}};
  problem.dedicated_round_s = {1};
  problem.add(0, 0, 100);
  EXPECT_EQ(problem.run(MoveRule::when_it_pays).finished(), 1);
}

TEST(ReplanTrace, UnderSeveralRulesIsWhatItIsUnderEach) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    ReplannedCase problem;
    uint64_t next = 0;
    double arrival_s = 0;
    for (int64_t jobs = 6; jobs > 0; --jobs) {
      arrival_s += 400 * uniform(seed, next++);
      const auto kind = static_cast<int32_t>(uniform_below(seed, next++, 3));
      problem.add(kind, arrival_s, 1000 * uniform(seed, next++));
    }
    const std::vector<ReplannedTrace> together =
        replan_trace(problem.trace, problem.model, problem.cluster, problem.cluster.nodes[0], problem.dedicated_round_s, {}, rules);
    ASSERT_EQ(together.size(), std::size(rules));
    for (size_t r = 0; r < together.size(); ++r) EXPECT_EQ(together[r], problem.run(rules[r])) << seed;
  }
}

TEST(ReplanTrace, DoesAllWorkOnceAndMovesByItsRuleOnRandomTraces) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    ReplannedCase problem;
    uint64_t next = 0;
    double arrival_s = 0;
    for (uint64_t jobs = 1 + uniform_below(seed, next++, 5); jobs > 0; --jobs) {
      arrival_s += 400 * uniform(seed, next++);
      const auto kind = static_cast<int32_t>(uniform_below(seed, next++, 3));
      const double duration_s = 1000 * uniform(seed, next++);
      problem.add(kind, arrival_s, duration_s, uniform_below(seed, next++, 4) == 0 ? 0.5 : 1);
    }
    for (const MoveRule rule : rules) {
      const ReplannedTrace result = problem.run(rule);
      double tokens = 0, moving_s = 0;
      int64_t moves = 0;
      for (size_t j = 0; j < result.jobs.size(); ++j) {
        const ReplannedJob& job = result.jobs[j];
        tokens += static_cast<double>(job.steps * problem.trace.kinds[static_cast<size_t>(problem.trace.jobs[j].kind)].step_tokens());
        EXPECT_GE(job.started_s, problem.trace.jobs[j].arrival_s);
        EXPECT_LE(job.finished_s, result.end_s);
      }
      EXPECT_NEAR(result.tokens / tokens, 1, 1e-9) << seed;
      for (const ReplanEvent& event : result.events) {
        moves += event.moves() ? 1 : 0;
        moving_s += event.moves() ? event.move_s : 0;
        const bool is_better = event.kept_s > event.best_s * (1 + 1e-12) && event.move_s > 0;
        if (event.kept_s == 0) {
          EXPECT_EQ(event.decision, ReplanDecision::must_move);
        } else if (rule == MoveRule::when_forced) {
          EXPECT_EQ(event.decision, ReplanDecision::keep);
        } else if (rule == MoveRule::when_it_pays) {
          EXPECT_EQ(event.moves(), event.gain_s > event.move_s && event.move_s > 0) << seed;
        } else if (is_better) {
          EXPECT_TRUE(event.moves()) << seed;
        }
      }
      EXPECT_EQ(result.moves, moves);
      EXPECT_NEAR(result.moving_s, moving_s, 1e-9);
      if (seed % 10 == 0) {
        EXPECT_EQ(problem.run(rule), result) << "pure";
      }
    }
  }
}

}  // namespace
}  // namespace cotune
