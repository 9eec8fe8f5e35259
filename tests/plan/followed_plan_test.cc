#include "plan/followed_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/make_plan.h"
#include "schedule/small_model.h"

namespace cotune {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Plan plan_of_three() {
  Plan plan{.planner = "1", .model_hash = hash_of(small_model()), .dtype = "float32", .jobs = {"c", "a", "b"}};
  plan.layout = Layout::chunked;
  plan.chunk_size = 32;
  plan.recompute = Recompute::always;
  PlannedReplica& replica = plan.replicas.emplace_back();
  replica.token_budget = 512;
  replica.longest_row = 2048;
  replica.stages.push_back({.shape = whole_model(small_model())});
  replica.hybrid_tasks = {{0, 1}, {2}};
  return plan;
}

const ModelConfig model = small_model();
const FollowingRun run{{"a", "b", "c"}, &model, "float32"};

std::vector<std::string> mistakes_in(const Plan& plan, const FollowingRun& with = run) {
  Diagnostics mistakes;
  follow(plan, with, "plan.json", mistakes);
  std::vector<std::string> lines;
  for (const Diagnostic& each : mistakes.items()) lines.push_back(each.to_string());
  return lines;
}

TEST(FollowedPlan, IsWhatThePlanSaysWithTheJobsOfTheRun) {
  Diagnostics mistakes;
  const FollowedPlan followed = follow(plan_of_three(), run, "plan.json", mistakes);
  EXPECT_TRUE(mistakes.empty());
  const FollowedPlan expected{.sharing = Sharing::hybrid,
                              .layout = Layout::chunked,
                              .chunk_size = 32,
                              .recompute = Recompute::always,
                              .replicas = {{.degrees = {},
                                            .layout = one_rank(model),
                                            .token_budget = 512,
                                            .hybrid_tasks = {{0, 2}, {1}}}}};
  EXPECT_EQ(followed, expected);
  EXPECT_EQ(followed.token_budget(), 512);
  EXPECT_EQ(followed.parallel().ranks(), 1);
}

/// Two stages that two ranks divide, interleaved; and a replica of one rank for short rows.
TEST(FollowedPlan, HasReplicasOfAnyShape) {
  Plan plan = plan_of_three();
  plan.order = PipelineOrder::interleaved;
  PlannedReplica small = plan.replicas.front();
  small.token_budget = 1024;
  small.longest_row = 256;
  small.hybrid_tasks = {{0, 1}};  // has no rows of b
  PlannedReplica& wide = plan.replicas.front();
  wide.tensor_parallel = 2;
  wide.buckets = {{0, 1}};
  const auto stage = [](int64_t first, int64_t last, bool embedding, bool head) { return StageShape{first, last, embedding, head, 2}; };
  wide.stages = {{.shape = stage(0, 1, true, false), .further = {stage(2, 2, false, false)}},
                 {.shape = stage(1, 2, false, false), .further = {stage(2, 3, false, true)}}};
  plan.replicas.push_back(small);
  Diagnostics mistakes;
  const FollowedPlan followed = follow(plan, run, "plan.json", mistakes);
  EXPECT_TRUE(mistakes.empty());
  EXPECT_EQ(to_string(followed.parallel()), "dp=1,pp=2,tp=2,vp=2+dp=1,pp=1,tp=1,len=256");
  EXPECT_EQ(followed.order, RankOrder::automatic);
  EXPECT_EQ(followed.replicas[0].layout.stage_rank, (std::vector<int32_t>{0, 1, 0, 1}));
  EXPECT_EQ(followed.replicas[0].layout.stages[3], stage(2, 3, false, true));
  EXPECT_EQ(followed.replicas[1].hybrid_tasks, (HybridTasks{{0, 2}, {1}}));
  EXPECT_EQ(followed.replicas[0].jobs_of_buckets, (HybridTasks{{0, 1, 2}}));
  EXPECT_TRUE(followed.replicas[1].jobs_of_buckets.empty()) << "nothing to hide where layers are whole";
}

TEST(FollowedPlan, DividesTokensAmongRanksThatDoInThePlan) {
  Plan plan = plan_of_three();
  PlannedReplica& replica = plan.replicas.front();
  replica.tensor_parallel = 2;
  replica.is_sequence_parallel = true;
  replica.stages.front().shape = {0, 3, true, true, 2, true};
  Diagnostics mistakes;
  const FollowedPlan followed = follow(plan, run, "plan.json", mistakes);
  EXPECT_TRUE(mistakes.empty());
  EXPECT_EQ(to_string(followed.parallel()), "dp=1,pp=1,tp=2,seq");
  EXPECT_TRUE(followed.replicas.front().layout.is_sequence_parallel());
}

TEST(FollowedPlan, SharesFrozenWeightsOverReplicasThatDoInThePlan) {
  Plan plan = plan_of_three();
  plan.replicas.front().shards = 2;
  plan.replicas.push_back(plan.replicas.front());
  Diagnostics mistakes;
  const FollowedPlan followed = follow(plan, run, "plan.json", mistakes);
  EXPECT_TRUE(mistakes.empty());
  EXPECT_EQ(to_string(followed.parallel()), "dp=2,pp=1,tp=1,shard");
  for (const FollowedReplica& replica : followed.replicas) EXPECT_TRUE(replica.layout.shards_weights);
}

TEST(FollowedPlan, IsRefusedWhereItIsNotThisRuns) {
  Plan plan = plan_of_three();
  EXPECT_THAT(mistakes_in(plan, {{"a", "b"}, &model, "float32"}),
              ElementsAre("plan.json: jobs: must be the jobs of the jobs file, a, b; got c, a, b"));
  ModelConfig other = small_model();
  other.vocabulary_size += 1;
  EXPECT_THAT(mistakes_in(plan, {{"a", "b", "c"}, &other, "float32"}),
              ElementsAre(HasSubstr("plan.json: model: must be " + hash_of(other) +
                                    ", the hash of this run's model; got " + hash_of(model))));
  EXPECT_THAT(mistakes_in(plan, {{"a", "b", "c"}, &model, "bfloat16"}),
              ElementsAre(HasSubstr("plan.json: dtype: must be bfloat16, which this run computes in; got float32")));
  EXPECT_TRUE(mistakes_in(plan, {{"a", "b", "c"}, nullptr, ""}).empty()) << "what is not known is not compared";

  plan = plan_of_three();
  plan.replicas[0].stages[0].shape.last_layer = 2;
  EXPECT_THAT(mistakes_in(plan),
              ElementsAre("plan.json: replicas[0].stages: must end at 3, the model's layers; got 2"));
  plan = plan_of_three();
  plan.replicas[0].token_budget = 255;
  EXPECT_THAT(mistakes_in(plan), ElementsAre("plan.json: replicas[0].token_budget: must be at least 256, got 255"));
  plan.replicas[0].token_budget = 300;
  plan.chunk_size = 301;
  EXPECT_THAT(mistakes_in(plan), ElementsAre("plan.json: replicas[0].token_budget: must be at least 301, got 300"));
  plan = plan_of_three();
  plan.replicas[0].hybrid_tasks = {{0, 1}};
  EXPECT_THAT(mistakes_in(plan),
              ElementsAre("plan.json: replicas[0].hybrid_tasks: must hold every job; job 2 (b) is in none"));
  plan.sharing = Sharing::temporal;
  EXPECT_TRUE(mistakes_in(plan).empty()) << "hybrid tasks are read under sharing hybrid alone";
}

TEST(FollowedPlan, OfTheModelThatItIsMadeForOnOneDeviceIsFollowed) {
  ClusterSpec cluster{.nodes = {{.name = "n", .device = device_preset("cpu")}}, .network = {}};
  std::vector<JobShape> jobs;
  for (int32_t j = 0; j < 3; ++j) {
    jobs.push_back({.name = std::string(1, static_cast<char>('a' + j)),
                    .batch_size = 2,
                    .lengths = histogram_of(std::vector<int64_t>{10, 90}),
                    .adapters = lora_everywhere(model, j, 4)});
  }
  PlanOptions options;
  options.dtype = "float32";
  const PlanningResult result = make_plan(model, cluster, jobs, options);
  ASSERT_NE(result.plan(), nullptr);
  EXPECT_TRUE(mistakes_in(*result.plan()).empty());
}

}  // namespace
}  // namespace cotune
