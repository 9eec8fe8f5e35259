#include "plan/cost/round_cost.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "plan/cost/stage_cost.h"
#include "plan/random_round.h"
#include "plan/synthetic_profile.h"
#include "schedule/token_counts.h"
#include "schedule/verify_step_plan.h"

namespace cotune {
namespace {

std::vector<int32_t> all_of(const RoundJobs& round) {
  std::vector<int32_t> jobs(round.jobs.size());
  std::iota(jobs.begin(), jobs.end(), 0);
  return jobs;
}

/// The same step on the whole model, layer by layer.
PlannedStep whole_step(const RoundJobs& round, const HybridTasks& tasks) {
  PlannedStep step;
  std::vector<BatchShape> batches;
  for (size_t j = 0; j < round.jobs.size(); ++j) {
    const JobShape& job = round.jobs[j];
    BatchShape batch{.job = static_cast<int32_t>(j), .lowest_layer = round.model.layer_count};
    for (const auto& [length, weight] : job.lengths.weights) {
      EXPECT_EQ(weight, std::floor(weight));
      batch.row_lengths.insert(batch.row_lengths.end(), static_cast<size_t>(weight), length);
    }
    for (const AdapterShape& adapter : job.adapters) batch.lowest_layer = std::min(batch.lowest_layer, adapter.layer);
    step.adapters.insert(step.adapters.end(), job.adapters.begin(), job.adapters.end());
    batches.push_back(std::move(batch));
  }
  PackingPolicy policy = round.policy;
  policy.layer_count = round.model.layer_count;
  policy.hybrid_tasks = tasks;
  step.plan = plan_step(batches, policy);
  verify(step.plan, round.model.layer_count);
  for (const Microbatch& microbatch : step.plan.microbatches) {
    int64_t labelled = 0;
    for (const Atom& atom : microbatch.atoms) {
      for (const Segment& segment : atom.segments) labelled += segment.length;
    }
    step.labelled.push_back(labelled);
  }
  return step;
}

/// Jobs whose batch is their whole histogram, so that its quantiles are its lengths, all tokens labelled.
RoundJobs exact_round(uint64_t seed) {
  RoundJobs round = random_round_jobs(seed, 5);
  for (JobShape& job : round.jobs) job.batch_size = static_cast<int64_t>(job.lengths.total());
  round.labelled_shares.clear();
  return round;
}

HybridTasks random_tasks_of(const RoundJobs& round, uint64_t seed) {
  HybridTasks tasks(3);
  for (size_t job = 0; job < round.jobs.size(); ++job) {
    tasks[uniform_below(seed, 70 + job, 3)].push_back(static_cast<int32_t>(job));
  }
  std::erase_if(tasks, [](const std::vector<int32_t>& task) { return task.empty(); });
  return tasks;
}

TEST(RoundCost, IsTheSumOverEveryOperatorThatTheWholePlanExecutes) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const RoundJobs round = exact_round(seed);
    const HybridTasks tasks = random_tasks_of(round, seed);
    const PlannedStep step = whole_step(round, tasks);
    const StepOperators operators(round.model, step);
    double seconds = 0;
    for (const Action& action : step.plan.actions) {
      for (const Operator* op : operators.of(action)) {
        seconds += operator_seconds(round.model, whole_model(round.model), *op, operators.counts(action.microbatch),
                                    round.machine);
      }
    }
    RoundCost cost(round);
    double sum = 0;
    int64_t microbatches = 0, tokens = 0;
    for (const std::vector<int32_t>& task : tasks) {
      sum += cost.task(task).seconds;
      microbatches += cost.task(task).microbatches;
      tokens += cost.task(task).tokens;
    }
    EXPECT_NEAR(sum, seconds, 1e-9 * seconds) << seed;
    EXPECT_EQ(microbatches, static_cast<int64_t>(step.plan.microbatches.size())) << seed;
    int64_t processed = 0;
    for (const TokenCounts& counts : count_tokens(step.plan)) processed += counts.processed();
    EXPECT_EQ(tokens, processed) << seed;
    EXPECT_GT(cost.fixed_seconds(), 0);
  }
}

TEST(RoundCost, WithMeasuredTimesIsTheTimeThatTheyGiveTheWholeRound) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    RoundJobs round = exact_round(seed);
    const MeasuredTimes times(synthetic_profile(round.model, 0), round.model, "profile.json");
    round.machine.measured = &times;
    const HybridTasks tasks = random_tasks_of(round, seed);
    RoundCost cost(round);
    double sum = cost.fixed_seconds();
    for (const std::vector<int32_t>& task : tasks) sum += cost.task(task).seconds;
    const double whole = times.step_seconds(round.model, whole_step(round, tasks)).total;
    EXPECT_NEAR(sum, whole, 1e-9 * whole) << seed;
  }
}

TEST(RoundCost, CountsTheLayersOfEveryTokensBackward) {
  RoundJobs round{.model = smollm2_135m()};
  round.machine.device = device_preset("cpu");
  round.jobs = {round_job(round.model, 0, 2, {100}, 0), round_job(round.model, 1, 1, {50}, 20)};
  RoundCost cost(round);
  EXPECT_EQ(cost.task(std::vector<int32_t>{0}).backward_layers, 200 * 30);
  EXPECT_EQ(cost.task(std::vector<int32_t>{1}).backward_layers, 50 * 10);
  EXPECT_EQ(cost.task(std::vector<int32_t>{1, 0}).backward_layers, 250 * 30);
  EXPECT_EQ(&cost.task(std::vector<int32_t>{1, 0}), &cost.task(all_of(round))) << "asked for once";
}

TEST(RoundCost, LabelsCostWhatTheirShareSays) {
  RoundJobs round{.model = smollm2_135m()};
  round.machine.device = device_preset("cpu");
  round.jobs = {round_job(round.model, 0, 4, {200})};
  const auto seconds = [&](double share) {
    round.labelled_shares = {share};
    return RoundCost(round).task(std::vector<int32_t>{0}).seconds;
  };
  EXPECT_LT(seconds(0.25), seconds(0.5));
  EXPECT_LT(seconds(0.5), seconds(1));
}

}  // namespace
}  // namespace cotune
