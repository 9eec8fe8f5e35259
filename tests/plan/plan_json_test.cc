#include "plan/plan_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"

namespace cotune {
namespace {

using testing::HasSubstr;

/// A plan of any shape: what it says need not make sense together.
Plan random_plan(uint64_t seed) {
  uint64_t next = 0;
  const auto below = [&](uint64_t bound) { return static_cast<int64_t>(uniform_below(seed, next++, bound)); };
  const auto number = [&] { return uniform(seed, next++) * 100; };
  Plan plan{.planner = "0.1.0",
            .model_hash = "m",
            .cluster_hash = "c",
            .profile_hash = below(2) == 0 ? "" : "p",
            .dtype = "float32"};
  const auto jobs = 1 + below(4);
  for (int64_t job = 0; job < jobs; ++job) plan.jobs.push_back("job-" + std::to_string(job));
  plan.deployment = static_cast<System>(below(4));
  plan.sharing = static_cast<Sharing>(below(4));
  plan.layout = static_cast<Layout>(below(3));
  plan.chunk_size = 1 + below(500);
  plan.order = static_cast<PipelineOrder>(below(3));
  plan.recompute = static_cast<Recompute>(below(3));
  int64_t devices = 0;
  const auto replicas = 1 + below(3);
  for (int64_t r = 0; r < replicas; ++r) {
    PlannedReplica& replica = plan.replicas.emplace_back();
    replica.tensor_parallel = 1 + below(3);
    replica.is_sequence_parallel = replica.tensor_parallel > 1 && below(2) == 0;
    replica.token_budget = 1 + below(10000);
    replica.longest_row = 1 + below(10000);
    const auto stages = 1 + below(3);
    int64_t layer = 0;
    for (int64_t s = 0; s < stages; ++s) {
      PlannedStage& stage = replica.stages.emplace_back();
      const int64_t end = layer + 1 + below(5);
      stage.shape = {layer, end, s == 0, s + 1 == stages, replica.tensor_parallel, replica.is_sequence_parallel};
      layer = end;
      for (int64_t i = 0; i < replica.tensor_parallel; ++i)
        stage.devices.push_back({"nodes-" + std::to_string(below(2)), below(9), devices++});
      stage.busy_s = number();
      stage.memory = {below(1 << 30), below(1 << 30), below(1 << 30), below(1 << 30)};
    }
    for (int32_t job = 0; job < jobs; ++job) replica.hybrid_tasks.push_back({job});
    for (int32_t job = 0; job < jobs; ++job) replica.buckets.push_back({job});
    for (int32_t job = 0; job < jobs; ++job) replica.backward_ratio.push_back(number());
    for (int32_t job = 0; job < jobs; ++job) {
      for (int64_t row = below(4), tokens = 1; row > 0; --row) replica.rows.push_back({job, tokens += below(100)});
    }
    replica.microbatches = below(100);
    replica.tokens = below(1 << 20);
    replica.processed_tokens = below(1 << 20);
    replica.seconds = number();
    replica.bubble = uniform(seed, next++);
    if (below(3) == 0) {
      replica.shards = 2;
      PlannedReplica copy = replica;
      for (PlannedStage& stage : copy.stages) {
        for (PlannedDevice& device : stage.devices) device.device = devices++;
      }
      plan.replicas.push_back(copy);
    }
  }
  plan.predicted = {number(),           number(),           below(1 << 20), below(1 << 20), number(),
                    uniform(seed, 999), uniform(seed, 998), below(1 << 30), number()};
  return plan;
}

TEST(PlanJson, OfAnyPlanReadsBackAsThatPlan) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const Plan plan = random_plan(seed);
    EXPECT_EQ(plan_from_json(to_json(plan).dump(), "plan.json"), plan) << seed;
    EXPECT_EQ(plan_from_json(to_json(plan).dump(2), "plan.json"), plan) << seed;
  }
}

TEST(PlanJson, HasNoCostWhereThereIsNoPrice) {
  Plan plan = random_plan(1);
  plan.predicted.cost = 2.5;
  EXPECT_EQ(to_json(plan)["predicted"]["cost"], 2.5);
  plan.predicted.cost = 0;
  nlohmann::ordered_json json = to_json(plan);
  EXPECT_TRUE(json["predicted"]["cost"].is_null());
  EXPECT_EQ(plan_from_json(json.dump(), "plan.json"), plan);
  json["predicted"]["cost"] = 0.0;  // as it was written before
  EXPECT_EQ(plan_from_json(json.dump(), "plan.json"), plan);
}

std::string refusal_of(const nlohmann::ordered_json& json) {
  try {
    plan_from_json(json.dump(), "plan.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(PlanJson, NamesFileFieldFoundAndAccepted) {
  const nlohmann::ordered_json good = to_json(random_plan(3));
  auto bad = good;
  bad["cotune_plan"] = 2;
  EXPECT_EQ(refusal_of(bad), "plan.json: cotune_plan: must be a whole number from 1 to 1, got 2");
  bad = good;
  bad["replicas"][0]["stages"][0]["memory"]["weights"] = "much";
  EXPECT_EQ(
      refusal_of(bad),
      "plan.json: replicas[0].stages[0].memory.weights: must be a whole number of at least 0, got \"much\"");
  bad = good;
  bad["sharing"] = "some";
  EXPECT_EQ(refusal_of(bad),
            "plan.json: sharing: must be one of separate, temporal, batch-all, hybrid, got \"some\"");
  bad = good;
  bad["replicas"][0]["hybrid_tasks"][0] = {99};
  EXPECT_THAT(refusal_of(bad),
              HasSubstr("plan.json: replicas[0].hybrid_tasks[0][0]: must be a whole number from 0 to "));
  bad = good;
  bad["replicas"][0]["stages"][0]["head"] = !bad["replicas"][0]["stages"][0]["head"].get<bool>();
  EXPECT_THAT(refusal_of(bad),
              HasSubstr("plan.json: replicas[0].stages[0].head: must be true on the last stage"));
  bad = good;
  bad["replicas"][0]["stages"][0]["layers"] = {1, 2};
  EXPECT_THAT(refusal_of(bad),
              HasSubstr("replicas[0].stages[0].layers[0]: must be a whole number from 0 to 0, got 1"));
  bad = good;
  bad["replicas"][0]["stages"][0]["devices"] = {{"n", 0, 0}};
  bad["replicas"][0]["tensor_parallel"] = 1;
  bad["replicas"][0]["sequence_parallel"] = true;
  EXPECT_EQ(refusal_of(bad), "plan.json: replicas[0].sequence_parallel: must be false where tensor_parallel is 1, got true");
  bad = good;
  bad["replicas"][0]["shards"] = 9;
  EXPECT_THAT(refusal_of(bad), HasSubstr("plan.json: replicas[0].shards: must be as many as the like replicas in a row from here, "));
  bad = good;
  bad["replicas"].push_back(bad["replicas"][0]);
  bad["replicas"].back()["shards"] = 1;
  EXPECT_THAT(refusal_of(bad), HasSubstr(".stages[0].devices[0]: must be a device that stands nowhere else, got [\"nodes-"));
  bad = good;
  bad["jobs"].push_back("job-0");
  EXPECT_THAT(refusal_of(bad), HasSubstr("must be a name that stands nowhere else, got \"job-0\""));
  bad = good;
  bad["predicted"]["seconds"] = -1;
  EXPECT_EQ(refusal_of(bad), "plan.json: predicted.seconds: must be a number of at least 0, got -1");
  bad = good;
  bad["surprise"] = 1;
  EXPECT_THAT(refusal_of(bad), HasSubstr("plan.json: surprise: unknown key; accepted: cotune_plan, planner,"));
  EXPECT_THAT(refusal_of(nullptr), HasSubstr("plan.json: plan: must be an object, got null"));
  EXPECT_THROW(plan_from_json("{", "plan.json"), UserError);
}

TEST(PlanJson, RefusesEveryMissingKey) {
  const nlohmann::ordered_json good = to_json(random_plan(8));
  const auto flat = good.flatten();
  int64_t removed = 0;
  for (const auto& [pointer, value] : flat.items()) {
    nlohmann::json copy = good;
    const nlohmann::json::json_pointer place(pointer);
    if (!copy.at(place.parent_pointer()).is_object()) continue;
    copy.at(place.parent_pointer()).erase(place.back());
    EXPECT_THAT(refusal_of(copy), HasSubstr(": is missing")) << pointer;
    ++removed;
  }
  EXPECT_GT(removed, 30);
}

TEST(PlanHash, ChangesWithTheModelAndTheCluster) {
  EXPECT_EQ(hash_of(model_preset("llama-2-7b")), hash_of(model_preset("llama-2-7b")));
  EXPECT_NE(hash_of(model_preset("llama-2-7b")), hash_of(model_preset("llama-2-13b")));
  ClusterSpec cluster;
  cluster.nodes = {{.name = "a", .device = device_preset("A40")}};
  const std::string before = hash_of(cluster);
  cluster.nodes[0].device.launch_seconds *= 2;
  EXPECT_NE(hash_of(cluster), before);
}

}  // namespace
}  // namespace cotune
