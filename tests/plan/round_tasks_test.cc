#include "plan/fusion/round_tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "plan/random_round.h"
#include "schedule/step_plan.h"
#include "schedule/verify_step_plan.h"

namespace cotune {
namespace {

using testing::HasSubstr;

RoundJobs round_of(std::vector<JobShape> jobs, const ModelConfig& model = smollm2_135m()) {
  RoundJobs round{.model = model, .jobs = std::move(jobs), .machine = {.device = device_preset("cpu")}};
  return round;
}

const RoundTasks& named(const ChosenRoundTasks& chosen, const std::string& name) {
  const auto found = std::find_if(chosen.alternatives.begin(), chosen.alternatives.end(),
                                  [&](const RoundTasks& each) { return each.name == name; });
  EXPECT_NE(found, chosen.alternatives.end()) << name;
  return *found;
}

TEST(RoundTasks, FuseShortBatchesIntoFewerMicrobatches) {
  const ModelConfig model = smollm2_135m();
  std::vector<JobShape> jobs;
  for (int32_t j = 0; j < 4; ++j) jobs.push_back(round_job(model, j, 1, {8}));
  const ChosenRoundTasks chosen = choose_round_tasks(round_of(jobs));
  EXPECT_EQ(chosen.taken().name, "all jobs fused");
  EXPECT_EQ(chosen.taken().tasks, (HybridTasks{{0, 1, 2, 3}}));
  EXPECT_EQ(chosen.taken().microbatches, 1);
  const RoundTasks& apart = named(chosen, "each job by itself");
  EXPECT_EQ(apart.microbatches, 4);
  EXPECT_GT(apart.seconds, chosen.taken().seconds);
  EXPECT_THAT(chosen.reason, HasSubstr("% shorter than "));
  EXPECT_THAT(chosen.reason, HasSubstr("1 microbatch in place of "));
}

TEST(RoundTasks, KeepJobsAdaptedHighUpFromGoingBackwardForNeighboursAdaptedLowDown) {
  const ModelConfig model = smollm2_135m();
  const auto full = std::vector<int64_t>{256};
  const ChosenRoundTasks chosen =
      choose_round_tasks(round_of({round_job(model, 0, 8, full, 0), round_job(model, 1, 8, full, 26),
                                   round_job(model, 2, 8, full, 0), round_job(model, 3, 8, full, 26)}));
  for (const std::vector<int32_t>& task : chosen.taken().tasks) {
    for (const int32_t job : task) EXPECT_EQ(job % 2, task.front() % 2);
  }
  const RoundTasks& fused = named(chosen, "all jobs fused");
  EXPECT_LT(chosen.taken().seconds, 0.9 * fused.seconds);
  EXPECT_THAT(chosen.reason, HasSubstr("less backward below a job's own adapters"));

  const auto part = std::vector<int64_t>{50};  // reading the weights takes as long as computing on so few tokens
  const ChosenRoundTasks pairs =
      choose_round_tasks(round_of({round_job(model, 0, 1, part, 0), round_job(model, 1, 1, part, 26),
                                   round_job(model, 2, 1, part, 0), round_job(model, 3, 1, part, 26)}));
  EXPECT_EQ(pairs.taken().name, "planned");
  EXPECT_EQ(pairs.taken().tasks, (HybridTasks{{0, 2}, {1, 3}}));
}

TEST(RoundTasks, KeepShortRowsFromBeingPaddedToLongOnes) {
  const ModelConfig model = smollm2_135m();
  RoundJobs round =
      round_of({round_job(model, 0, 1, {16}), round_job(model, 1, 2, {240}), round_job(model, 2, 1, {16})});
  round.policy.layout = Layout::padded;
  const ChosenRoundTasks chosen = choose_round_tasks(round);
  EXPECT_EQ(chosen.taken().tasks, (HybridTasks{{0, 2}, {1}}));
  EXPECT_EQ(chosen.taken().pads, 0);
  EXPECT_GT(named(chosen, "all jobs fused").pads, 0);
  round.policy.layout = Layout::ragged;
  EXPECT_EQ(choose_round_tasks(round).taken().name, "all jobs fused") << "without pads nothing speaks against it";
}

/// LoRAPP fills the pipeline with other tasks' microbatches: one task alone leaves most of its stages idle (ML-19).
TEST(RoundTasks, InAPipelineStayApartAsFarAsItsStagesNeedThem) {
  const ModelConfig model = smollm2_135m();
  std::vector<JobShape> jobs;
  for (int32_t j = 0; j < 8; ++j) jobs.push_back(round_job(model, j, 1, {8}));
  RoundJobs round = round_of(jobs);
  EXPECT_EQ(choose_round_tasks(round).taken().name, "all jobs fused");
  round.stages = 4;
  const ChosenRoundTasks chosen = choose_round_tasks(round);
  const RoundTasks& fused = named(chosen, "all jobs fused");
  EXPECT_EQ(chosen.taken().tasks.size(), 4u) << "as many as there are stages, of short rows that are cheaper together";
  for (const std::vector<int32_t>& task : chosen.taken().tasks) EXPECT_EQ(task.size(), 2u);
  EXPECT_DOUBLE_EQ(fused.busy, 0.25);
  EXPECT_GT(chosen.taken().busy, 0.9);
  EXPECT_THAT(chosen.reason, HasSubstr("of the time in place of 25%"));
}

/// Full microbatches gain nothing together, and eight tasks' own ways through the stages are hidden behind the others' work.
TEST(RoundTasks, InAPipelineOfFullMicrobatchesAreJobsByThemselves) {
  const ModelConfig model = smollm2_135m();
  std::vector<JobShape> jobs;
  for (int32_t j = 0; j < 8; ++j) jobs.push_back(round_job(model, j, 4, {512}));
  RoundJobs round = round_of(jobs);
  round.stages = 4;
  const ChosenRoundTasks chosen = choose_round_tasks(round);
  EXPECT_EQ(chosen.taken().name, "each job by itself");
  EXPECT_GT(named(chosen, "planned").seconds, (1 - least_gain) * chosen.taken().seconds) << "a gain that cannot be told";
  EXPECT_NEAR(chosen.taken().busy, 1, 1e-9);
}

/// The closed form by hand, and every alternative no shorter than what is taken.
TEST(RoundTasks, InAPipelineTakeTheWorkOfAllStagesOrTheLongestTasksOwnWay) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    RoundJobs round = random_round_jobs(seed, 7);
    round.stages = 2 + static_cast<int64_t>(seed % 4);
    RoundCost cost(round);
    const ChosenRoundTasks chosen = choose_round_tasks(round);
    for (const RoundTasks& each : chosen.alternatives) {
      double work = 0, longest = 0;
      for (const std::vector<int32_t>& task : each.tasks) {
        const TaskCost& own = cost.task(task);
        work += own.seconds;
        const double stages = static_cast<double>(round.stages), microbatches = static_cast<double>(own.microbatches);
        longest = std::max(longest, own.seconds * (1 + (stages - 1) / microbatches));
      }
      const double expected = cost.fixed_seconds() + std::max(work, longest) / static_cast<double>(round.stages);
      EXPECT_NEAR(each.seconds, expected, 1e-9 * expected) << seed << " " << each.name;
      EXPECT_GE(each.seconds, (1 - least_gain) * chosen.taken().seconds) << seed << " " << each.name;
    }
  }
}

/// ML-19: groups only where there are more jobs than stages, and as many as stages then.
TEST(RoundTasks, PerStageAreAsManyAsStagesOrJobsAndOfAboutEqualTokens) {
  const ModelConfig model = smollm2_135m();
  for (int32_t count = 1; count <= 12; ++count) {
    std::vector<JobShape> jobs;
    for (int32_t j = 0; j < count; ++j) jobs.push_back(round_job(model, j, 1, {8}));
    RoundJobs round = round_of(jobs);
    round.stages = 4;
    const HybridTasks tasks = tasks_per_stage(round);
    ASSERT_EQ(std::ssize(tasks), std::min(count, 4));
    const auto [least, most] = std::ranges::minmax(tasks, {}, &std::vector<int32_t>::size);
    EXPECT_LE(most.size() - least.size(), 1u) << count;
    // Every group's rows fit into one microbatch, so the frozen products of a round are called min(T, D) times in place of T times (ML-20).
    EXPECT_EQ(predict_round_tasks(round, tasks, "").microbatches, std::min(count, 4));
    round.stages = 1;
    EXPECT_EQ(tasks_per_stage(round).size(), 1u);
  }
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RoundJobs round = random_round_jobs(seed, 9);
    round.stages = 1 + static_cast<int64_t>(seed % 5);
    const HybridTasks tasks = tasks_per_stage(round);
    ASSERT_EQ(std::ssize(tasks), std::min(std::ssize(round.jobs), round.stages));
    std::vector<int32_t> all;
    std::vector<double> tokens;
    double longest = 0, sum = 0;
    for (const std::vector<int32_t>& task : tasks) {
      tokens.push_back(0);
      for (const int32_t job : task) {
        const JobShape& shape = round.jobs[static_cast<size_t>(job)];
        const double own = static_cast<double>(shape.batch_size) * shape.lengths.mean();
        tokens.back() += own;
        longest = std::max(longest, own);
        sum += own;
        all.push_back(job);
      }
    }
    std::ranges::sort(all);
    for (size_t j = 0; j < round.jobs.size(); ++j) ASSERT_EQ(all[j], static_cast<int32_t>(j)) << "each job once";
    const double mean = sum / static_cast<double>(tasks.size());
    EXPECT_LE(std::ranges::max(tokens), mean + longest) << seed;
    EXPECT_EQ(tasks_per_stage(round), tasks) << "stable between steps";
  }
}

TEST(RoundTasks, OfOneJobAreThatJob) {
  const ModelConfig model = smollm2_135m();
  const ChosenRoundTasks chosen = choose_round_tasks(round_of({round_job(model, 0, 4, {30})}));
  ASSERT_EQ(chosen.alternatives.size(), 1u);
  EXPECT_EQ(chosen.taken().tasks, (HybridTasks{{0}}));
  EXPECT_EQ(chosen.taken().name, "one job");
  EXPECT_EQ(chosen.reason, "the only job");
}

void expect_each_job_once(const HybridTasks& tasks, size_t jobs) {
  std::vector<int32_t> seen;
  for (const std::vector<int32_t>& task : tasks) {
    EXPECT_FALSE(task.empty());
    EXPECT_TRUE(std::is_sorted(task.begin(), task.end()));
    seen.insert(seen.end(), task.begin(), task.end());
  }
  std::sort(seen.begin(), seen.end());
  std::vector<int32_t> all(jobs);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(seen, all);
}

/// The rounds of random jobs under their planned tasks are proven: every token once, no microbatch above the budget,
/// none of two tasks. Row lengths are not those that were planned for.
TEST(RoundTasks, GiveStepPlansThatAreProvenOverRandomJobSets) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    RoundJobs round = random_round_jobs(seed, 8);
    const ChosenRoundTasks chosen = choose_round_tasks(round);
    EXPECT_EQ(chosen, choose_round_tasks(round)) << seed;
    EXPECT_FALSE(chosen.reason.empty());
    for (const RoundTasks& each : chosen.alternatives) {
      expect_each_job_once(each.tasks, round.jobs.size());
      EXPECT_GE(each.seconds, (1 - least_gain) * chosen.taken().seconds) << seed << " " << each.name;
      EXPECT_EQ(predict_round_tasks(round, each.tasks, each.name), each);
    }
    std::vector<BatchShape> batches;
    for (size_t j = 0; j < round.jobs.size(); ++j) {
      const JobShape& job = round.jobs[j];
      batches.push_back(
          {.job = static_cast<int32_t>(j), .row_lengths = sample_lengths(job.lengths, seed + j, job.batch_size)});
      batches.back().lowest_layer = job.adapters.front().layer;
    }
    PackingPolicy policy = round.policy;
    policy.layer_count = round.model.layer_count;
    policy.hybrid_tasks = chosen.taken().tasks;
    const StepPlan plan = plan_step(batches, policy);
    verify(plan, round.model.layer_count);
    for (const Microbatch& microbatch : plan.microbatches) {
      EXPECT_LE(microbatch.token_count(), policy.token_budget);
    }
  }
}

/// Every partition of `jobs` jobs into sets.
void for_all_partitions(size_t jobs, HybridTasks& tasks, const std::function<void()>& visit) {
  size_t placed = 0;
  for (const std::vector<int32_t>& task : tasks) placed += task.size();
  if (placed == jobs) return visit();
  for (size_t t = 0; t <= tasks.size(); ++t) {
    if (t == tasks.size()) tasks.emplace_back();
    tasks[t].push_back(static_cast<int32_t>(placed));
    for_all_partitions(jobs, tasks, visit);
    tasks[t].pop_back();
    if (tasks[t].empty()) {
      tasks.pop_back();
      break;
    }
  }
}

TEST(RoundTasks, AreNearTheBestOfAllPartitions) {
  double sum = 0, worst = 0;
  constexpr int cases = 60;
  for (uint64_t seed = 0; seed < cases; ++seed) {
    const RoundJobs round = random_round_jobs(1000 + seed, 6);
    const double taken = choose_round_tasks(round).taken().seconds;
    RoundCost cost(round);
    double best = std::numeric_limits<double>::infinity();
    HybridTasks tasks;
    for_all_partitions(round.jobs.size(), tasks, [&] {
      double seconds = cost.fixed_seconds();
      for (const std::vector<int32_t>& task : tasks) seconds += cost.task(task).seconds;
      best = std::min(best, seconds);
    });
    sum += taken / best - 1;
    worst = std::max(worst, taken / best - 1);
  }
  RecordProperty("mean_percent", std::to_string(100 * sum / cases));
  RecordProperty("worst_percent", std::to_string(100 * worst));
  EXPECT_LT(sum / cases, 0.01) << sum / cases;
  EXPECT_LT(worst, 0.05) << worst;
}

TEST(RoundTasks, DoNotDependOnTheOrderOfJobs) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const RoundJobs round = random_round_jobs(2000 + seed, 7);
    RoundJobs turned = round;
    std::reverse(turned.jobs.begin(), turned.jobs.end());
    std::reverse(turned.labelled_shares.begin(), turned.labelled_shares.end());
    for (size_t j = 0; j < turned.jobs.size(); ++j) {
      for (AdapterShape& adapter : turned.jobs[j].adapters) adapter.job = static_cast<int32_t>(j);
    }
    const double seconds = choose_round_tasks(round).taken().seconds;
    EXPECT_NEAR(choose_round_tasks(turned).taken().seconds, seconds, 0.02 * seconds) << seed;
  }
}

TEST(RoundTasks, OfManyJobsAreFoundAmongGroupsOfThem) {
  const ModelConfig model = smollm2_135m();
  std::vector<JobShape> jobs;
  for (int32_t j = 0; j < 40; ++j) {
    jobs.push_back(round_job(model, j, 2, {10 + 9 * j}, j % 3 == 0 ? 24 : 0));
  }
  const ChosenRoundTasks chosen = choose_round_tasks(round_of(jobs));
  for (const RoundTasks& each : chosen.alternatives) expect_each_job_once(each.tasks, 40);
  EXPECT_EQ(chosen.taken().name, "planned");
  EXPECT_LT(chosen.taken().seconds, named(chosen, "all jobs fused").seconds);
  EXPECT_LT(chosen.taken().seconds, named(chosen, "each job by itself").seconds);
}

}  // namespace
}  // namespace cotune
