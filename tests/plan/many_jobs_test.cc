// A plan for as many jobs as MuxTune's largest workload has (MX-28). How long planning takes decides no test.
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "plan/plan_json.h"
#include "plan/replica_models.h"
#include "plan/shapes/typical_step.h"
#include "plan/small_problems.h"
#include "schedule/pipeline/verify_pipeline.h"

namespace cotune {
namespace {

/// WL-B of MuxTune's Table 2 so many times, with the stand-in lengths of muxtune_workloads_test.cc.
std::vector<JobShape> table_2(const ModelConfig& model, int64_t times) {
  const std::vector<int64_t> batches{4, 2, 4, 4, 8, 2, 4, 4}, lengths{256, 64, 256, 64, 64, 256, 256, 256};
  std::vector<JobShape> jobs;
  for (int64_t i = 0; i < times * static_cast<int64_t>(batches.size()); ++i) {
    const auto row = static_cast<size_t>(i) % batches.size();
    jobs.push_back(job_of(model, static_cast<int32_t>(i), batches[row], {lengths[row]}, 16));
  }
  return jobs;
}

TEST(MakePlan, OfThirtyTwoJobsOfTable2HasThemAllAndIsProven) {
  const ModelConfig model = model_preset("llama-2-7b");
  const ClusterSpec cluster = cluster_of(1, 4, "A40");
  const std::vector<JobShape> jobs = table_2(model, 4);
  const PlanningResult result = make_plan(model, cluster, jobs, {.threads = 1});
  ASSERT_NE(result.plan(), nullptr);
  const Plan& plan = *result.plan();
  EXPECT_EQ(plan_from_json(to_json(plan).dump(), "plan.json"), plan);

  // Every job is in the plan by name, and every row of its batch on one replica.
  ASSERT_EQ(plan.jobs.size(), jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) EXPECT_EQ(plan.jobs[i], jobs[i].name);
  std::multiset<std::pair<int32_t, int64_t>> rows, expected;
  int64_t devices = 0;
  for (const PlannedReplica& replica : plan.replicas) {
    for (const StepRow& row : replica.rows) rows.emplace(row.job, row.tokens);
    for (const PlannedStage& stage : replica.stages) {
      devices += static_cast<int64_t>(stage.devices.size());
      EXPECT_LE(stage.memory.total(), cluster.nodes.front().device.usable_bytes());
    }
  }
  for (const StepRow& row : typical_step(jobs)) expected.emplace(row.job, row.tokens);
  EXPECT_EQ(rows, expected);
  EXPECT_LE(devices, 4);

  // Its hybrid tasks hold every job that has rows there once, and its order of work comes to its end within memory.
  const std::vector<ReplicaModel> models = replica_models(plan, model, cluster, jobs);
  ASSERT_EQ(models.size(), plan.replicas.size());
  for (size_t r = 0; r < models.size(); ++r) {
    const PlannedReplica& replica = plan.replicas[r];
    if (replica.rows.empty()) continue;
    std::set<int32_t> with_rows;
    for (const StepRow& row : replica.rows) with_rows.insert(row.job);
    std::multiset<int32_t> in_tasks;
    for (const std::vector<int32_t>& task : replica.hybrid_tasks) in_tasks.insert(task.begin(), task.end());
    for (const int32_t job : with_rows) EXPECT_EQ(in_tasks.count(job), 1u) << job;
    const PricedRows priced = price_rows(models[r], replica.rows, packing_of(plan, replica));
    const ReplicaPrediction prediction = predict_replica(models[r], priced, plan.order, PlanOptions{}.rounds);
    EXPECT_EQ(prediction.constraint, "");
    EXPECT_EQ(prediction.seconds, replica.seconds);
    ASSERT_FALSE(prediction.runs.empty());
    for (const ReplicaRun& run : prediction.runs) EXPECT_NO_THROW(verify(run.work, run.schedule));
  }
}

}  // namespace
}  // namespace cotune
