#include "plan/deployment/replan.h"

#include <gtest/gtest.h>

#include "plan/cost/published_rates.h"

namespace cotune {
namespace {

using Counts = std::vector<int64_t>;

/// LobRA's worked example with a task of long sequences that comes and goes.
struct Example {
  Example() {
    for (const Configuration& each : published_7b_configurations()) {
      if (each.pipeline_stages == 1) configurations.push_back(each);
    }
    costs = bucket_costs(configurations, std::vector<int64_t>{2048, 4096, 8192, 16384});
  }
  Replan ask(const Counts& sequences, const Counts& running, double steps, double margin = 0) const {
    return replan(configurations, costs, sequences, 16, running, steps, moving, margin);
  }
  std::vector<Configuration> configurations;  // <1,1> <2,1> <4,1> <8,1>
  std::vector<BucketCosts> costs;
  // 13.5 GB of weights at 2 GB/s: 6.75 s; 300 MB of state at 1 GB/s: 0.3 s to save, 0.3 s to read.
  MoveCosts moving{.weight_bytes = 13'500'000'000, .adapter_bytes = 100'000'000, .optimizer_bytes = 200'000'000};
  Counts with_long = {196, 62, 16, 4}, without_long = {196, 62, 0, 0};
};

TEST(MoveBetween, CountsWhatStaysGoesAndComes) {
  const Example example;
  const Move move = move_between(example.configurations, Counts{4, 2, 0, 1}, Counts{6, 1, 2, 0}, example.moving);
  ASSERT_EQ(move.changes.size(), 4u);
  EXPECT_EQ(move.changes[0], (ReplicaChange{0, 4, 0, 2}));
  EXPECT_EQ(move.changes[1], (ReplicaChange{1, 1, 1, 0}));
  EXPECT_EQ(move.changes[2], (ReplicaChange{2, 0, 0, 2}));
  EXPECT_EQ(move.changes[3], (ReplicaChange{3, 0, 1, 0}));
  EXPECT_EQ(move.weight_bytes, 4 * int64_t{13'500'000'000});
  EXPECT_EQ(move.state_bytes, 5 * int64_t{300'000'000}) << "written once, read by four";
  EXPECT_NEAR(move.seconds, 10 + 0.3 + 6.75 + 0.3, 1e-9) << "replicas load at the same time";
  const Move fewer = move_between(example.configurations, Counts{4, 2, 0, 1}, Counts{4, 2, 0, 0}, example.moving);
  EXPECT_NEAR(fewer.seconds, 10.3, 1e-9) << "nothing is loaded";
  EXPECT_EQ(fewer.weight_bytes, 0);
  const Move none = move_between(example.configurations, Counts{4, 2, 0, 1}, Counts{4, 2, 0, 1}, example.moving);
  EXPECT_EQ(none.seconds, 0);
  EXPECT_EQ(none.state_bytes, 0);
}

TEST(Replan, KeepsWhatIsBestAlready) {
  const Example example;
  const Replan first = example.ask(example.with_long, Counts(4, 0), 1000);
  EXPECT_EQ(first.decision, ReplanDecision::must_move) << "nothing runs yet";
  EXPECT_EQ(first.replicas, (Counts{4, 2, 0, 1}));
  const Replan again = example.ask(example.with_long, first.replicas, 1000);
  EXPECT_EQ(again.decision, ReplanDecision::keep);
  EXPECT_EQ(again.move.seconds, 0);
}

TEST(Replan, AfterALongTaskLeftMovesToSmallerReplicasWhereThatPays) {
  const Example example;
  const Counts running = {4, 2, 0, 1};
  const Replan many = example.ask(example.without_long, running, 1000);
  EXPECT_EQ(many.decision, ReplanDecision::move);
  EXPECT_EQ(many.replicas[3], 0) << "no sixteen thousand tokens to hold any more";
  EXPECT_LT(many.best_seconds, many.kept_seconds);
  // The turning point is the steps that moving takes to pay for.
  const double enough = many.move.seconds / (many.kept_seconds - many.best_seconds);
  EXPECT_EQ(example.ask(example.without_long, running, enough * 1.01).decision, ReplanDecision::move);
  const Replan few = example.ask(example.without_long, running, enough * 0.99);
  EXPECT_EQ(few.decision, ReplanDecision::keep);
  EXPECT_EQ(few.replicas, running);
  EXPECT_NE(few.reason.find("against"), std::string::npos);
  EXPECT_EQ(example.ask(example.without_long, running, enough * 1.4, 0.5).decision, ReplanDecision::keep) << "within the margin";
}

TEST(Replan, ForALongerTaskThanAnyReplicaHoldsMovesWhateverItCosts) {
  const Example example;
  const Replan small = example.ask(example.without_long, Counts(4, 0), 1000);
  const Replan arrival = example.ask(example.with_long, small.replicas, 1);
  EXPECT_EQ(arrival.decision, ReplanDecision::must_move);
  EXPECT_EQ(arrival.replicas, (Counts{4, 2, 0, 1}));
  EXPECT_GT(arrival.move.seconds, 0);
  EXPECT_EQ(example.ask(Counts(4, 0), arrival.replicas, 1).decision, ReplanDecision::stop) << "no task is left";
  const Replan none = replan(example.configurations, example.costs, example.with_long, 4, Counts(4, 0), 10, example.moving);
  EXPECT_EQ(none.decision, ReplanDecision::stop);
  EXPECT_NE(none.reason.find("4 devices"), std::string::npos);
}

}  // namespace
}  // namespace cotune
