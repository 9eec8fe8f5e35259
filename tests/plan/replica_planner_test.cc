#include "plan/replica_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "plan/deployment/step_dispatch.h"
#include "plan/replica_models.h"
#include "plan/small_problems.h"

namespace cotune {
namespace {

TEST(PlanReplica, InterleavesHybridTasksWhereTensorParallelismCommunicates) {
  const ModelConfig model = model_preset("llama-2-7b");
  std::vector<JobShape> jobs;
  for (int32_t j = 0; j < 4; ++j) jobs.push_back(job_of(model, j, 8, {256, 512}, 16));
  const PlanOptions options;
  PlannedReplica replica{.tensor_parallel = 2, .token_budget = 4096, .rows = typical_step(jobs)};
  replica.stages = {{.shape = {.last_layer = model.layer_count, .tensor_parallel = 2}, .devices = {{"n", 0, 0}, {"n", 0, 1}}}};
  const auto planned = [&](const ClusterSpec& cluster, Sharing sharing) {
    ReplicaPlanner planner(model, cluster, cluster.nodes[0], jobs, options, false);
    return planner.plan(replica, sharing, {PipelineOrder::automatic}).front();
  };
  const ClusterSpec cluster = cluster_of(1, 2, "RTX4090", 2);  // room for all jobs in one microbatch
  const ReplicaChoice hybrid = planned(cluster, Sharing::hybrid), batch_all = planned(cluster, Sharing::batch_all);
  ASSERT_EQ(hybrid.constraint, "");
  ASSERT_EQ(batch_all.constraint, "");
  EXPECT_LT(hybrid.replica.buckets.size(), hybrid.replica.hybrid_tasks.size()) << "some hybrid tasks share a clock";
  EXPECT_LT(hybrid.replica.seconds, 0.95 * batch_all.replica.seconds);
  EXPECT_EQ(hybrid.replica.tokens, batch_all.replica.tokens);
  // Where the device does next to nothing else while it communicates, next to nothing is gained.
  ClusterSpec busy = cluster;
  busy.nodes[0].device.communication_share = 0.99;
  EXPECT_GT(planned(busy, Sharing::hybrid).replica.seconds, 1.02 * hybrid.replica.seconds);
  // And without tensor parallelism nothing is interleaved.
  replica.tensor_parallel = replica.stages[0].shape.tensor_parallel = 1;
  replica.stages[0].devices.pop_back();
  const ReplicaChoice single = planned(cluster, Sharing::hybrid);
  EXPECT_EQ(single.replica.buckets.size(), single.replica.hybrid_tasks.size());
}

/// What rows on a replica take, in one microbatch: no order changes that.
TEST(PlanReplica, OfDividedTokensWaitsForEveryCollective) {
  const ModelConfig model = model_preset("llama-2-7b");
  std::vector<JobShape> jobs;
  for (int32_t j = 0; j < 2; ++j) jobs.push_back(job_of(model, j, 4, {256}, 16));
  const ClusterSpec cluster = cluster_of(1, 2, "RTX4090", 2);
  PlannedReplica replica{.tensor_parallel = 2, .is_sequence_parallel = true, .token_budget = 4096, .rows = typical_step(jobs)};
  replica.stages = {{.shape = {0, model.layer_count, true, true, 2, true}, .devices = {{"n", 0, 0}, {"n", 0, 1}}}};
  const PlanOptions options;
  ReplicaPlanner planner(model, cluster, cluster.nodes[0], jobs, options, false);
  const ReplicaChoice hybrid = planner.plan(replica, Sharing::hybrid, {PipelineOrder::automatic}).front();
  const ReplicaChoice batch_all = planner.plan(replica, Sharing::batch_all, {PipelineOrder::automatic}).front();
  ASSERT_EQ(hybrid.constraint, "");
  EXPECT_EQ(hybrid.replica.buckets.size(), hybrid.replica.hybrid_tasks.size()) << "no two tasks in one clock";
  std::vector<AdapterShape> adapters;
  double steps_s = 0;
  for (const JobShape& job : jobs) {
    adapters.insert(adapters.end(), job.adapters.begin(), job.adapters.end());
    int64_t parameters = 0, summands = 0;
    for (const AdapterShape& each : job.adapters) {
      parameters += each.width * (projection_size(model, each.projection).in + projection_size(model, each.projection).out);
      // The factor that all ranks have: A of q and v, B of down; both of the stream's width.
      summands += each.width * model.hidden_size;
    }
    steps_s += optimizer_seconds(parameters, job.moment_count, cluster.nodes[0].device);
    steps_s += all_reduce_seconds(static_cast<double>(summands * 4), 2, cluster.nodes[0].link);
  }
  const MicrobatchCounts counts{.tokens = 2048, .labelled = 2048, .attention_pairs = 8 * 256 * 257 / 2, .job_tokens = {1024, 1024},
                                .row_parts = 8, .job_atoms = {4, 4}};
  const StageSeconds seconds = stage_seconds(model, replica.stages[0].shape, adapters, counts, planner.machine(2));
  ASSERT_EQ(batch_all.replica.microbatches, 1);
  EXPECT_NEAR(batch_all.replica.seconds / (seconds.total() + steps_s), 1, 1e-9);
  EXPECT_LE(hybrid.replica.seconds, batch_all.replica.seconds * (1 + 1e-9));
}

/// Four stages of Llama-2-70B, beside which memory holds few of the largest microbatches.
TEST(PlanReplica, HalvesTheBudgetAsLongAsAPipelineWaitsForMemory) {
  const ModelConfig model = model_preset("llama-2-70b");
  const std::vector<JobShape> jobs = {job_of(model, 0, 32, {200, 400, 800, 1600}, 16), job_of(model, 1, 32, {100, 200, 400, 800}, 16),
                                      job_of(model, 2, 8, {1000, 2000, 3000, 4096}, 16), job_of(model, 3, 16, {200, 300, 400, 500}, 16)};
  const ClusterSpec cluster = cluster_of(1, 4, "A800-80");
  PlannedReplica replica{.tensor_parallel = 1, .token_budget = 4096, .rows = typical_step(jobs)};
  for (const StageShape& shape : even_stages(model, 4, 1)) {
    replica.stages.push_back({.shape = shape, .devices = {{"n", 0, static_cast<int64_t>(replica.stages.size())}}});
  }
  const auto seconds = [&](int64_t token_budget) {
    PlanOptions options;
    options.token_budget = token_budget;
    const ReplicaChoice choice =
        ReplicaPlanner(model, cluster, cluster.nodes[0], jobs, options, false).plan(replica, Sharing::hybrid, {PipelineOrder::automatic}).front();
    return choice.fits() ? choice.replica.seconds : std::numeric_limits<double>::infinity();
  };
  double best = std::numeric_limits<double>::infinity();
  for (const int64_t budget : {4096, 2048, 1024, 512, 256}) best = std::min(best, seconds(budget));
  EXPECT_LE(seconds(0), best * 1.02);
  EXPECT_GT(seconds(4096), best * 1.1) << "the largest budget would do";
}

}  // namespace
}  // namespace cotune
