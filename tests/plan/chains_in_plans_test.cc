/// Rows longer than a microbatch among what a plan chooses: as chains they fill a pipeline.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/plan_report.h"
#include "plan/random_pipeline.h"
#include "plan/replica_planner.h"
#include "plan/shapes/published_lengths.h"
#include "plan/small_problems.h"

namespace cotune {
namespace {

int64_t longest_of(const std::vector<JobShape>& jobs) {
  int64_t longest = 0;
  for (const JobShape& job : jobs) longest = std::max(longest, job.lengths.longest());
  return longest;
}

/// On four or eight stages, a few long rows and some short ones.
PlanningProblem few_long_rows(uint64_t seed) {
  PlanningProblem problem = random_pipeline_problem(seed);
  problem.cluster.nodes[0].device.memory_bytes *= 3;
  problem.jobs[0].batch_size = 2;
  problem.jobs[0].lengths = histogram_of(std::vector<int64_t>{3000 + 500 * static_cast<int64_t>(seed)});
  return problem;
}

const ConsideredConfiguration& considered(const PlanningResult& result, const PlannedReplica& replica) {
  const auto found = std::ranges::find_if(result.configurations, [&](const ConsideredConfiguration& each) {
    return each.tensor_parallel == replica.tensor_parallel && each.pipeline_stages == std::ssize(replica.stages) && each.shards == replica.shards &&
           each.is_sequence_parallel == replica.is_sequence_parallel && each.recompute == (result.plan()->recompute == Recompute::always);
  });
  EXPECT_NE(found, result.configurations.end());
  return *found;
}

TEST(ChainsInPlans, AreMadeWhereTheyFillAPipeline) {
  int64_t chained = 0;
  double gained = 0;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    PlanningProblem problem = few_long_rows(seed);
    problem.options.replicas.tensor_degrees = {1};
    const PlanningResult free = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
    ASSERT_NE(free.plan(), nullptr) << free.advice;
    problem.options.token_budget = longest_of(problem.jobs);
    const PlanningResult whole = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
    ASSERT_NE(whole.plan(), nullptr) << whole.advice;
    EXPECT_LE(free.plan()->predicted.seconds, 1.001 * whole.plan()->predicted.seconds);
    gained = std::max(gained, whole.plan()->predicted.seconds / free.plan()->predicted.seconds);
    const int64_t chained_before = chained;
    for (const PlannedReplica& replica : free.plan()->replicas) {
      for (const StepRow& row : replica.rows) {
        chained += row.tokens > replica.token_budget;
        EXPECT_LE(row.tokens, replica.longest_row);
      }
      // As many microbatches of a pipeline as it needs in flight are a run's limit, too.
      const ConsideredConfiguration& shape = considered(free, replica);
      EXPECT_LE(replica.token_budget, std::max(shape.chunk_tokens, least_budget(problem.options)));
      EXPECT_EQ(replica.longest_row, shape.longest_row);
      EXPECT_GE(replica.token_budget, least_budget(problem.options));
    }
    const testing::Matcher<std::string> tells = testing::HasSubstr("tokens, longer rows as chains of them: ");
    EXPECT_THAT(explain(free, problem.cluster), chained > chained_before ? tells : testing::Not(tells));
  }
  EXPECT_GT(chained, 0);
  EXPECT_GT(gained, 1.3);
}

/// Two stages on RTX 4090 hold the longest row as chunks of 384 tokens, and not as the largest that fit.
TEST(ChainsInPlans, HoldTheLongestRowInSmallMicrobatchesWhereLargeOnesDoNot) {
  PlanningProblem problem;
  problem.model = model_preset("llama-3-8b");
  problem.cluster = cluster_of(2, 4, "RTX4090");
  const auto add_job = [&](const std::string& lengths, int64_t batch_size) {
    JobSpec spec;
    spec.adapter.r = 16;
    spec.adapter.target_modules = {"q_proj", "v_proj"};
    const auto index = static_cast<int32_t>(problem.jobs.size());
    problem.jobs.push_back({.name = lengths,
                            .batch_size = batch_size,
                            .lengths = truncated(published_lengths(lengths), 8192),
                            .adapters = adapter_shapes(spec, index, problem.model)});
  };
  add_job("metamathqa-weibull", 64);
  add_job("billsum-lognormal", 4);
  add_job("cnn-dailymail-gamma", 16);
  problem.options.sharing = {Sharing::hybrid};
  problem.options.orders = {PipelineOrder::automatic};
  problem.options.savings = {};
  const PlanningResult free = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
  ASSERT_NE(free.plan(), nullptr) << free.advice;
  const auto is_of_two = [](const ConsideredConfiguration& each) { return each.tensor_parallel == 1 && each.pipeline_stages == 2; };
  const auto of_two = std::ranges::find_if(free.configurations, is_of_two);
  ASSERT_NE(of_two, free.configurations.end());
  EXPECT_GE(of_two->longest_row, longest_of(problem.jobs));
  for (const int64_t budget : {384, 512, 768}) {
    problem.options.token_budget = budget;
    const PlanningResult with_budget = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
    ASSERT_NE(with_budget.plan(), nullptr) << with_budget.advice;
    EXPECT_LE(free.plan()->predicted.seconds, 1.02 * with_budget.plan()->predicted.seconds) << budget;
  }
}

/// What a run is told when another replica takes longer rows: the rows that fit, however small its microbatches are.
TEST(ChainsInPlans, LeaveReplicasTheRowsThatFit) {
  PlanningProblem problem = few_long_rows(1);
  problem.options.token_budget = 512;
  const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
  ASSERT_NE(result.plan(), nullptr) << result.advice;
  for (const PlannedReplica& replica : result.plan()->replicas) {
    EXPECT_EQ(replica.token_budget, 512);
    EXPECT_GT(replica.longest_row, 512);
  }
}

/// 1F1B goes by a number of microbatches in flight, so that a pipeline may hold as many of its longest rows; batch-all makes no chain.
TEST(ChainsInPlans, AreCountedOnWhereTheOrderAndTheSharingMakeThem) {
  PlanningProblem problem = few_long_rows(1);
  const auto longer_rows = [&](const std::vector<PipelineOrder>& orders, const std::vector<Sharing>& sharing) {
    problem.options.orders = orders;
    problem.options.sharing = sharing;
    int64_t longer = 0;
    for (const ConsideredConfiguration& each : make_plan(problem.model, problem.cluster, problem.jobs, problem.options).configurations) {
      longer += each.pipeline_stages > 1 && each.longest_row > each.chunk_tokens;
    }
    return longer;
  };
  EXPECT_GT(longer_rows({PipelineOrder::automatic}, {Sharing::hybrid}), 0);
  EXPECT_EQ(longer_rows({PipelineOrder::one_f_one_b}, {Sharing::hybrid}), 0);
  EXPECT_EQ(longer_rows({PipelineOrder::automatic}, {Sharing::batch_all}), 0);
}

}  // namespace
}  // namespace cotune
