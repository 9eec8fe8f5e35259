// Backwards over forwards of a plan's buckets (MX-15).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "plan/plan_report.h"
#include "plan/planning_json.h"
#include "plan/random_planning.h"
#include "plan/replica_models.h"

namespace cotune {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(BackwardRatio, IsThatOfTheMicrobatchesOfEveryBucketUnderEverySharing) {
  int64_t buckets = 0;
  for (uint64_t seed = 300; seed < 312; ++seed) {
    PlanningProblem problem = random_planning_problem(seed);
    problem.options.sharing = {static_cast<Sharing>(seed % 4)};
    const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
    if (result.plan() == nullptr) continue;
    const Plan& plan = *result.plan();
    const std::vector<ReplicaModel> models = replica_models(plan, problem.model, problem.cluster, problem.jobs);
    for (size_t r = 0; r < models.size(); ++r) {
      const PlannedReplica& replica = plan.replicas[r];
      ASSERT_EQ(replica.backward_ratio.size(), replica.buckets.size());
      const auto& rows = result.plan()->replicas[r].rows;
      if (rows.empty()) continue;
      std::map<int32_t, StageSeconds> sums;
      for (const PipelineWork& work : price_rows(models[r], rows, packing_of(plan, replica)).works) {
        for (const PipelineMicrobatch& microbatch : work.microbatches) {
          for (const StageCost& cost : microbatch.cost) {
            sums[microbatch.hybrid_task].forward += cost.forward_s;
            sums[microbatch.hybrid_task].backward += cost.backward_s;  // every stage has adapters of every job
          }
        }
      }
      ASSERT_EQ(sums.size(), replica.buckets.size());
      for (const auto& [bucket, sum] : sums) {
        EXPECT_NEAR(replica.backward_ratio[static_cast<size_t>(bucket)], sum.backward / sum.forward, 1e-9) << seed;
        ++buckets;
      }
    }
  }
  EXPECT_GT(buckets, 20);
}

TEST(BackwardRatio, AboveOnePointThreeIsFlaggedInTheReportAndInJson) {
  PlanningProblem problem = random_planning_problem(3);
  for (const Recompute recompute : {Recompute::never, Recompute::always}) {
    problem.options.recompute = recompute;
    const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
    ASSERT_NE(result.plan(), nullptr);
    const std::vector<PlannedReplica>& replicas = result.plan()->replicas;
    size_t flagged = 0;
    const nlohmann::ordered_json json = to_json(result);
    for (const auto& each : json.at("uneven_buckets")) {
      const PlannedReplica& replica = replicas.at(each.at("replica").get<size_t>());
      EXPECT_EQ(replica.backward_ratio.at(each.at("bucket").get<size_t>()), each.at("backward_ratio").get<double>());
      EXPECT_GT(each.at("backward_ratio").get<double>(), 1.3);
      ++flagged;
    }
    size_t above = 0;
    for (const PlannedReplica& replica : replicas) {
      for (const double ratio : replica.backward_ratio) above += ratio > 1.3 ? 1 : 0;
    }
    EXPECT_EQ(flagged, above);
    const std::string report = explain(result, problem.cluster);
    EXPECT_THAT(report, HasSubstr(" times as long as their forwards"));
    // Forwards are run again before their backwards.
    EXPECT_EQ(above > 0, recompute == Recompute::always);
    if (recompute == Recompute::always) {
      EXPECT_THAT(report, HasSubstr("; above 1.3 in "));
    } else {
      EXPECT_THAT(report, Not(HasSubstr("above 1.3")));
    }
  }
}

}  // namespace
}  // namespace cotune
