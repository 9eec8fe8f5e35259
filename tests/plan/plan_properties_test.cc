/// What holds for every plan, over thousands of small random cases: jobs of a few rows on one to four devices of a tiny model, under random
/// layouts, dtypes, orders, sharing and savings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <map>

#include "base/error.h"
#include "base/random.h"
#include "plan/make_plan.h"
#include "plan/plan_json.h"
#include "plan/replica_models.h"
#include "schedule/pipeline/verify_pipeline.h"

namespace cotune {
namespace {

struct SmallCase {
  ModelConfig model = model_preset("tinyllama-1.1b");
  ClusterSpec cluster;
  std::vector<JobShape> jobs;
  PlanOptions options;

  explicit SmallCase(uint64_t seed) {
    uint64_t next = 0;
    const auto below = [&](uint64_t bound) { return uniform_below(seed, next++, bound); };
    const auto one_of = [&]<typename T>(std::initializer_list<T> list) -> T { return *(list.begin() + static_cast<std::ptrdiff_t>(below(list.size()))); };
    model.layer_count = static_cast<int64_t>(1 + below(4));
    model.hidden_size = 64;
    model.intermediate_size = 128;
    model.head_count = 4;
    model.kv_head_count = 2;
    model.head_dim = 16;
    model.vocabulary_size = 256;
    model.context_length = 512;
    DeviceSpec device = device_preset("A40");
    device.memory_bytes = static_cast<int64_t>((1 + below(24)) << 18);
    device.launch_seconds = 1e-6 * static_cast<double>(below(5));
    cluster.nodes = {{.name = "n", .count = one_of({1, 1, 2}), .devices = one_of({1, 2}), .device = device, .link = link_preset("pcie4")}};
    cluster.network = link_preset("infiniband-100");
    const auto count = static_cast<int32_t>(1 + below(3));
    for (int32_t j = 0; j < count; ++j) {
      JobSpec spec;
      spec.adapter.method = one_of({AdapterMethod::lora, AdapterMethod::lora, AdapterMethod::bottleneck, AdapterMethod::diff_pruning});
      spec.adapter.r = spec.adapter.bottleneck_size = one_of({2, 8});
      if (spec.adapter.method != AdapterMethod::bottleneck && below(2) == 0) spec.adapter.target_modules = {"all-linear"};
      std::vector<int64_t> lengths;
      for (uint64_t n = 1 + below(3); n > 0; --n) lengths.push_back(one_of({1, 8, 40, 100, 300}));
      jobs.push_back({.name = "j" + std::to_string(j), .batch_size = static_cast<int64_t>(1 + below(4)), .lengths = histogram_of(lengths),
                      .adapters = adapter_shapes(spec, j, model), .moment_count = one_of({0, 1, 2})});
    }
    options.dtype = one_of({"bfloat16", "float32"});
    options.layout = one_of({Layout::ragged, Layout::chunked, Layout::padded});
    options.sharing = {one_of({Sharing::separate, Sharing::temporal, Sharing::batch_all, Sharing::hybrid, Sharing::hybrid})};
    options.orders = {one_of({PipelineOrder::gpipe, PipelineOrder::one_f_one_b, PipelineOrder::automatic, PipelineOrder::automatic})};
    options.deployments = {one_of({System::task_fused, System::lobra})};
    options.simulated_deployments = 1;
    options.savings.clear();
    if (below(3) == 0) options.savings = {{.recompute = below(2) == 0, .most_shards = one_of({1, 4})}};
    options.recompute = one_of({Recompute::automatic, Recompute::automatic, Recompute::never, Recompute::always});
  }
  PlanningResult plan() const { return make_plan(model, cluster, jobs, options); }
};

/// Every row of the typical step is on one replica, and where it is sent it fits.
void expect_all_rows_once(const SmallCase& problem, const Plan& plan) {
  std::map<std::pair<int32_t, int64_t>, int64_t> left;
  for (const StepRow& row : typical_step(problem.jobs)) ++left[{row.job, row.tokens}];
  for (const PlannedReplica& replica : plan.replicas) {
    for (const StepRow& row : replica.rows) {
      --left[{row.job, row.tokens}];
      EXPECT_LE(row.tokens, replica.longest_row);
    }
  }
  for (const auto& [row, count] : left) EXPECT_EQ(count, 0) << "job " << row.first << ", " << row.second << " tokens";
}

/// Devices of a plan are there, and each has one rank.
void expect_devices_once(const SmallCase& problem, const Plan& plan) {
  std::map<std::pair<int64_t, int64_t>, int64_t> ranks;
  for (const PlannedReplica& replica : plan.replicas) {
    for (const PlannedStage& stage : replica.stages) {
      for (const PlannedDevice& device : stage.devices) {
        EXPECT_LT(device.node, problem.cluster.nodes[0].count);
        EXPECT_LT(device.device, problem.cluster.nodes[0].devices);
        EXPECT_EQ((++ranks[{device.node, device.device}]), 1);
      }
    }
  }
}

TEST(EveryPlan, VerifiesKeepsWithinMemoryAndIsTheSameAgainOnTenThousandSmallCases) {
  int64_t found = 0, without = 0, pipelines = 0, several = 0, interleaved = 0, empty = 0, idle = 0;
  for (uint64_t seed = 0; seed < 12500 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    SmallCase problem(seed);
    problem.options.may_idle = seed >= 10000;  // then one replica of so small a model often ends before several exchange gradients
    const PlanningResult result = problem.plan();
    if (result.plan() == nullptr) {
      ++without;
      EXPECT_FALSE(result.advice.empty()) << "it says what would fit";
      for (const Alternative& each : result.alternatives) EXPECT_FALSE(each.constraint.empty());
      continue;
    }
    ++found;
    const Plan& plan = *result.plan();
    several += plan.replicas.size() > 1 ? 1 : 0;
    int64_t devices = 0;
    for (const PlannedReplica& replica : plan.replicas) devices += replica.devices();
    idle += devices < problem.cluster.device_count() ? 1 : 0;
    EXPECT_EQ(plan_from_json(to_json(plan).dump(), "plan.json"), plan);
    expect_devices_once(problem, plan);
    expect_all_rows_once(problem, plan);
    const std::vector<ReplicaModel> models =
        replica_models(plan, problem.model, problem.cluster, problem.jobs, nullptr, problem.options.replicas.gather_overlap);
    for (size_t r = 0; r < plan.replicas.size(); ++r) {
      const PlannedReplica& replica = plan.replicas[r];
      for (const PlannedStage& stage : replica.stages) {
        EXPECT_GT(stage.memory.weights, 0);
        EXPECT_LE(stage.memory.total(), problem.cluster.nodes[0].device.usable_bytes());
      }
      if (replica.rows.empty()) {
        ++empty;
        continue;
      }
      pipelines += replica.stages.size() > 1 ? 1 : 0;
      interleaved += replica.chunks() > 1 ? 1 : 0;
      const PricedRows priced = price_rows(models[r], replica.rows, packing_of(plan, replica));
      const ReplicaPrediction again = predict_replica(models[r], priced, plan.order, problem.options.rounds);
      EXPECT_TRUE(again.fits()) << again.constraint;
      EXPECT_EQ(again.seconds, replica.seconds);
      EXPECT_LE(again.fullest_bytes(), models[r].memory_limit);
      std::vector<int64_t> room;  // for what is in flight
      for (const StageMemory& resident : priced.resident) room.push_back(models[r].memory_limit - resident.total());
      for (const ReplicaRun& run : again.runs) EXPECT_NO_THROW(verify(run.work, run.schedule, room));
    }
    if (seed % 4 == 0) {
      EXPECT_EQ(*problem.plan().plan(), plan) << "equal inputs give equal plans";
    }
  }
  EXPECT_GT(found, 5580);
  EXPECT_GT(without, 3420);
  EXPECT_GT(pipelines, 1080);
  EXPECT_GT(several, 3070);
  EXPECT_GT(interleaved, 102);
  EXPECT_GT(empty, 0);
  EXPECT_GT(idle, 300);
}

}  // namespace
}  // namespace cotune
