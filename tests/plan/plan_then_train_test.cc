#include <gtest/gtest.h>

#include <map>

#include "plan/followed_plan.h"
#include "plan/make_plan.h"
#include "plan/random_planning.h"
#include "schedule/step_plan.h"

namespace cotune {
namespace {

/// What `cotune train --plan` packs of the typical step.
StepPlan trained(const Plan& plan, const std::vector<StepRow>& rows) {
  Diagnostics mistakes;
  const FollowedPlan followed = follow(plan, {.jobs = plan.jobs, .model = nullptr, .dtype = plan.dtype}, "plan.json", mistakes);
  EXPECT_EQ(mistakes.size(), 0u);
  std::map<int32_t, std::vector<int64_t>> lengths;
  for (const StepRow& row : rows) lengths[row.job].push_back(row.tokens);
  std::vector<BatchShape> batches;
  for (const auto& [job, own] : lengths) batches.push_back({.job = job, .row_lengths = own});
  return plan_step(batches, {.sharing = followed.sharing,
                             .layout = followed.layout,
                             .token_budget = followed.token_budget(),
                             .chunk_size = followed.chunk_size,
                             .hybrid_tasks = followed.replicas.front().hybrid_tasks});
}

TEST(PlanThenTrain, SharingMeansTheSameMicrobatches) {
  int64_t compared = 0, fused = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    for (const Sharing sharing : {Sharing::separate, Sharing::temporal, Sharing::batch_all, Sharing::hybrid}) {
      PlanningProblem problem = random_planning_problem(seed);
      problem.cluster.nodes.front().count = problem.cluster.nodes.front().devices = 1;
      problem.options.sharing = {sharing};
      problem.options.deployments = {System::task_fused};
      problem.options.layout = static_cast<Layout>(seed % 3);
      if (seed % 4 == 0) problem.options.token_budget = 512;
      const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
      if (result.plan() == nullptr) continue;
      const Plan& plan = *result.plan();
      ASSERT_EQ(plan.sharing, sharing);
      if (problem.options.token_budget > 0) {
        EXPECT_EQ(plan.replicas.front().token_budget, 512) << seed;
      }
      const StepPlan step = trained(plan, result.alternatives[*result.chosen].rows.front().front());
      const std::string what = std::string(name_of(sharing)) + " " + std::to_string(seed);
      EXPECT_EQ(static_cast<int64_t>(step.microbatches.size()), plan.replicas.front().microbatches) << what;
      int64_t processed = 0;
      for (const TokenCounts& counts : count_tokens(step)) processed += counts.processed();
      EXPECT_EQ(processed, plan.replicas.front().processed_tokens) << what;
      ++compared;
      fused += sharing == Sharing::batch_all && step.microbatches.size() == 1 ? 1 : 0;
    }
  }
  EXPECT_GT(compared, 100);
  EXPECT_GT(fused, 8);
}

}  // namespace
}  // namespace cotune
