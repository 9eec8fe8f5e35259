#include "plan/cost/replica_prediction.h"

#include <gtest/gtest.h>

#include <functional>

#include "plan/random_planning.h"
#include "plan/replica_models.h"

namespace cotune {
namespace {

/// Of the plans of random problems: each replica that has rows.
void for_each_replica(uint64_t problems, const std::function<void(const ReplicaModel&, const PricedRows&, int64_t rounds)>& look) {
  for (uint64_t seed = 0; seed < problems; ++seed) {
    const PlanningProblem problem = random_planning_problem(seed);
    const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
    if (result.plan() == nullptr) continue;
    const Plan& plan = *result.plan();
    const std::vector<ReplicaModel> models = replica_models(plan, problem.model, problem.cluster, problem.jobs);
    for (size_t r = 0; r < models.size(); ++r) {
      const PlannedReplica& replica = plan.replicas[r];
      if (replica.rows.empty() || replica.chunks() > 1) continue;
      look(models[r], price_rows(models[r], replica.rows, packing_of(plan, replica)), problem.options.rounds);
    }
  }
}

constexpr PipelineOrder orders[] = {PipelineOrder::gpipe, PipelineOrder::one_f_one_b, PipelineOrder::automatic};

TEST(ReplicaPrediction, IsNeverBelowWhatNoOrderIsShorterThan) {
  int64_t looked_at = 0;
  for_each_replica(20, [&](const ReplicaModel& replica, const PricedRows& priced, int64_t rounds) {
    for (const PipelineOrder order : orders) {
      EXPECT_GE(predict_replica(replica, priced, order, rounds).seconds, (1 - 1e-9) * least_seconds(priced, rounds));
    }
    ++looked_at;
  });
  EXPECT_GE(looked_at, 15);
}

TEST(ReplicaPrediction, GivesUpOnlyWhatTakesAsLongAsItIsToBeat) {
  int64_t given_up = 0;
  for_each_replica(20, [&](const ReplicaModel& replica, const PricedRows& priced, int64_t rounds) {
    for (const PipelineOrder order : orders) {
      const double seconds = predict_replica(replica, priced, order, rounds).seconds;
      const auto within = [&](double share) { return predict_within(replica, priced, order, rounds, {.below_s = share * seconds}); };
      ASSERT_TRUE(within(1.001).has_value()) << "it is shorter than that";
      EXPECT_EQ(within(1.001)->seconds, seconds);
      given_up += within(0.5).has_value() ? 0 : 1;
    }
  });
  EXPECT_GE(given_up, 45) << "not the half of it is too long for a simulation";
}

TEST(ReplicaPrediction, HasAnEstimateCloseByWithoutASimulation) {
  for_each_replica(20, [&](const ReplicaModel& replica, const PricedRows& priced, int64_t rounds) {
    const ReplicaPrediction simulated = predict_replica(replica, priced, PipelineOrder::automatic, rounds);
    const ReplicaPrediction estimated = estimate_replica(replica, priced, EstimatedOrder::chosen, rounds);
    EXPECT_TRUE(estimated.fits());
    EXPECT_LE(estimated.seconds, (1 + 1e-9) * simulated.seconds) << "of the same order, with nothing that waits for messages";
    EXPECT_GE(estimated.seconds, 0.9 * simulated.seconds);
    for (size_t rank = 0; rank < replica.rank_count(); ++rank) {
      const auto most = static_cast<double>(replica.memory_limit);
      EXPECT_NEAR(static_cast<double>(estimated.memory[rank].total()), static_cast<double>(simulated.memory[rank].total()), 0.02 * most);
    }
    const ReplicaPrediction plain = estimate_replica(replica, priced, EstimatedOrder::continuous_one_f_one_b, rounds);
    EXPECT_GE(plain.seconds, (1 - 1e-9) * least_seconds(priced, rounds));
  });
}

}  // namespace
}  // namespace cotune
