#include "cli/run/planned_division.h"

#include <gtest/gtest.h>

#include "plan/cost/stage_memory.h"

namespace cotune {
namespace {

constexpr int64_t mib = int64_t{1} << 20;

enum class Ranks { threads, processes };

/// Two ranks of a CPU whose kernels read packed bf16 weights, with a job of short rows.
struct Problem {
  explicit Problem(int64_t layers) {
    model.layer_count = layers;
    run.ranks = 2;
    run.token_budget = 256;
    JobSpec spec;
    spec.adapter.target_modules = {"q_proj", "v_proj"};
    jobs.push_back({.name = "short", .batch_size = 8, .lengths = {{{64, 1}}}, .adapters = adapter_shapes(spec, 0, model)});
  }

  int64_t values() const { return frozen_bytes(model, whole_model(model), 2); }
  int64_t held() const { return held_weight_bytes(model, whole_model(model), {.element_size = 2, .packed = true}); }

  DivisionQuestion question(Ranks ranks, int64_t memory_bytes) const {
    return {.run = run,
            .model = model,
            .costs = costs,
            .memory_bytes = memory_bytes,
            .weights = {.element_size = 2, .packed = true, .are_shared = ranks == Ranks::threads},
            .dtype = costs.machine.dtype};
  }

  ModelConfig model = model_preset("tinyllama-1.1b");
  RunSpec run;
  DeviceCosts costs = roofline_costs(at::kBFloat16, ComputeDevice{}, 2);
  std::vector<JobShape> jobs;
};

TEST(PlannedDivision, OfProcessesGivesNoneAModelThatFitsByItsValuesAlone) {
  const Problem problem(22);
  const int64_t between = (problem.values() + problem.held()) / 2;
  for (const bool may_divide_layers : {false, true}) {
    for (const bool may_shard_weights : {false, true}) {
      DivisionQuestion question = problem.question(Ranks::processes, between);
      question.may_divide_layers = may_divide_layers;
      question.may_shard_weights = may_shard_weights;
      const std::optional<PlannedDivision> division = plan_division(question, problem.jobs);
      ASSERT_TRUE(division.has_value()) << may_divide_layers << may_shard_weights;
      for (const ReplicaDegrees& replica : division->parallel.replicas) {
        EXPECT_TRUE(replica.ranks() > 1 || replica.shards_weights) << to_string(division->parallel);
      }
    }
  }
}

TEST(PlannedDivision, OfProcessesMakesReplicasWhereEachHoldsTheModel) {
  const Problem problem(1);  // which stages cannot divide
  const auto division_within = [&](int64_t memory_bytes) {
    DivisionQuestion question = problem.question(Ranks::processes, memory_bytes);
    question.may_divide_layers = false;
    return plan_division(question, problem.jobs);
  };
  EXPECT_FALSE(division_within((problem.values() + problem.held()) / 2).has_value());
  const std::optional<PlannedDivision> division = division_within(problem.held() + 512 * mib);
  ASSERT_TRUE(division.has_value());
  EXPECT_EQ(division->parallel, *parse_parallel("dp=2"));
}

TEST(PlannedDivision, OfThreadsCountsTheWeightsOnceForAllReplicas) {
  const Problem problem(1);
  const auto division_within = [&](int64_t memory_bytes) {
    DivisionQuestion question = problem.question(Ranks::threads, memory_bytes);
    question.may_divide_layers = false;
    return plan_division(question, problem.jobs);
  };
  EXPECT_FALSE(division_within(problem.held() + 8 * mib).has_value());
  const int64_t limit = problem.held() + 400 * mib;
  ASSERT_LT(limit, 2 * problem.held());
  const std::optional<PlannedDivision> division = division_within(limit);
  ASSERT_TRUE(division.has_value());
  EXPECT_EQ(division->parallel, *parse_parallel("dp=2"));
}

TEST(PlannedDivision, OfRunningThreadsLeavesRoomForAllWeightsThatThereAre) {
  const Problem problem(1);
  const auto answer_within = [&](int64_t memory_bytes) {
    const DivisionRequest request{.jobs = problem.jobs, .running = *parse_parallel("dp=2"), .tensor_degrees = {1, 2}};
    return plan_division_anew(problem.question(Ranks::threads, memory_bytes), request);
  };
  EXPECT_FALSE(answer_within(problem.held() + 400 * mib).has_value());
  EXPECT_TRUE(answer_within(2 * problem.held() + 400 * mib).has_value());
}

/// A division in slices is priced as it is, with what it waits for them, so that another one can be found better.
TEST(PlannedDivision, OfRunningProcessesThatShardWeightsIsComparedWithOthers) {
  const Problem problem(4);
  DivisionQuestion question = problem.question(Ranks::processes, int64_t{64} << 30);
  question.may_shard_weights = true;
  DivisionRequest request{.jobs = problem.jobs, .time_ratio = 1, .running = *parse_parallel("dp=2"), .tensor_degrees = {}};
  const std::optional<DivisionAnswer> whole = plan_division_anew(question, request);
  request.running = *parse_parallel("dp=2,shard");
  const std::optional<DivisionAnswer> slices = plan_division_anew(question, request);
  ASSERT_TRUE(whole.has_value() && slices.has_value());
  EXPECT_EQ(slices->best.parallel, whole->best.parallel);
  EXPECT_GT(whole->kept_seconds, 0);
  EXPECT_GE(slices->kept_seconds, whole->kept_seconds);
  question.memory_bytes = (problem.values() + problem.held()) / 2 + (int64_t{64} << 20);  // whole weights do not fit
  const std::optional<DivisionAnswer> tight = plan_division_anew(question, request);
  ASSERT_TRUE(tight.has_value());
  EXPECT_GT(tight->kept_seconds, 0);
}

}  // namespace
}  // namespace cotune
