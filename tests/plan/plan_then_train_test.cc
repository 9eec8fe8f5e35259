#include <gtest/gtest.h>

#include <map>

#include "plan/followed_plan.h"
#include "plan/make_plan.h"
#include "plan/random_planning.h"
#include "plan/replica_models.h"
#include "schedule/pipeline/one_f_one_b.h"
#include "schedule/pipeline/rank_plan.h"
#include "schedule/step_plan.h"
#include "schedule/token_counts.h"

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
      const StepPlan step = trained(plan, plan.replicas.front().rows);
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

/// Two hybrid tasks on a pipeline of three stages, several microbatches each.
TEST(PlanThenTrain, FixedOrdersRunAsTheyWerePredicted) {
  const ModelConfig model = model_preset("tinyllama-1.1b");
  const ClusterSpec cluster{.nodes = {{.name = "n", .devices = 3, .device = device_preset("A40"), .link = link_preset("pcie4")}}, .network = {}};
  PlanningProblem problem{.model = model, .cluster = cluster, .jobs = {}, .options = {}};
  JobSpec spec;
  spec.adapter.r = 8;
  for (const int64_t batch_size : {6, 6, 8}) add_job(problem, spec, {300}, batch_size);
  Plan plan{.model_hash = hash_of(model), .dtype = "bfloat16", .jobs = {"job-0", "job-1", "job-2"}};
  PlannedReplica& replica = plan.replicas.emplace_back();
  replica.token_budget = 1200;
  replica.hybrid_tasks = {{0, 1}, {2}};
  for (int64_t s = 0; s < 3; ++s) {
    replica.stages.push_back({.shape = {s * model.layer_count / 3, (s + 1) * model.layer_count / 3, s == 0, s == 2}, .devices = {{"n", 0, s}}});
  }
  const std::vector<StepRow> rows = typical_step(problem.jobs);
  const StageCosts costs = [](const StepPlan&, size_t, size_t) { return StageCost{}; };
  for (const PipelineOrder order : {PipelineOrder::gpipe, PipelineOrder::one_f_one_b}) {
    plan.order = order;
    const ReplicaModel priced_on = replica_models(plan, model, cluster, problem.jobs).front();
    const ReplicaPrediction prediction = predict_replica(priced_on, price_rows(priced_on, rows, packing_of(plan, replica)), order, 2);
    ASSERT_EQ(prediction.runs.size(), 1u);
    const ReplicaRun& predicted = prediction.runs.front();
    Diagnostics mistakes;
    const FollowedPlan followed = follow(plan, {.jobs = plan.jobs, .model = &model, .dtype = plan.dtype}, "plan.json", mistakes);
    ASSERT_EQ(mistakes.size(), 0u);
    const StepPlan step = trained(plan, rows);
    ASSERT_EQ(step.microbatches.size(), 5u);
    const RankPlan run = plan_ranks({step, step}, followed.replicas.front().layout, costs, {.order = followed.order});
    EXPECT_EQ(compute_order(run.schedule), compute_order(predicted.schedule)) << name_of(order);
    EXPECT_NE(compute_order(run.schedule), one_f_one_b(predicted.work, BatchBoundary::continuous)) << "what it would be without flushes";
  }
}

}  // namespace
}  // namespace cotune
