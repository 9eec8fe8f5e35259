// The systems that LobRA is compared with (LB-15, LB-25, LB-33): unlike replicas against every plan that plain loops find, and the order of
// the four systems on the published tasks.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

#include "plan/cost/published_rates.h"
#include "plan/deployment/system_deployments.h"
#include "plan/distributions.h"
#include "plan/make_plan.h"
#include "plan/random_deployment.h"
#include "plan/shapes/length_buckets.h"
#include "plan/small_problems.h"

namespace cotune {
namespace {

constexpr double no_plan_s = std::numeric_limits<double>::infinity();

/// The least makespan of sharing out buckets `bucket` and above, `left` of the first of them, among so many replicas of configurations
/// `configuration` and above; rows: what a replica of each has of each bucket by now.
double shortest_sharing(const StepWork& work, const std::vector<int64_t>& replicas, size_t bucket, size_t configuration, int64_t left,
                        std::vector<std::vector<int64_t>>& rows) {
  if (bucket == work.sequences.size()) {
    double makespan = 0;
    for (size_t i = 0; i < replicas.size(); ++i) {
      double seconds = 0;
      for (size_t j = 0; j < bucket; ++j) seconds += rows[i][j] > 0 ? static_cast<double>(rows[i][j]) * work.costs[i].seconds[j] : 0;
      makespan = std::max(makespan, seconds > 0 ? seconds + work.costs[i].fill : 0);
    }
    return makespan;
  }
  if (configuration == replicas.size()) {
    if (left > 0) return no_plan_s;
    const int64_t next = bucket + 1 < work.sequences.size() ? work.sequences[bucket + 1] : 0;
    return shortest_sharing(work, replicas, bucket + 1, 0, next, rows);
  }
  double best = no_plan_s;
  const bool can_take = replicas[configuration] > 0 && bucket < work.costs[configuration].reach();
  for (int64_t taken = 0; taken <= (can_take ? left : 0); ++taken) {
    rows[configuration][bucket] = taken > 0 ? (taken + replicas[configuration] - 1) / replicas[configuration] : 0;
    best = std::min(best, shortest_sharing(work, replicas, bucket, configuration + 1, left - taken, rows));
  }
  rows[configuration][bucket] = 0;
  return best;
}

double shortest_sharing(const StepWork& work, const std::vector<int64_t>& replicas) {
  std::vector<std::vector<int64_t>> rows(replicas.size(), std::vector<int64_t>(work.sequences.size(), 0));
  return shortest_sharing(work, replicas, 0, 0, work.sequences.front(), rows);
}

/// Over all numbers of replicas of three configurations, and over those of one configuration of which the devices hold no more.
struct ShortestPlans {
  double unlike_s = no_plan_s, alike_s = no_plan_s;
};
ShortestPlans shortest_plans(const StepWork& work, int64_t devices) {
  ShortestPlans found;
  const auto size = [&](size_t i) { return work.costs[i].devices; };
  for (int64_t a = 0; a * size(0) <= devices; ++a) {
    for (int64_t b = 0; a * size(0) + b * size(1) <= devices; ++b) {
      for (int64_t c = 0; a * size(0) + b * size(1) + c * size(2) <= devices; ++c) {
        const double seconds = shortest_sharing(work, {a, b, c});
        found.unlike_s = std::min(found.unlike_s, seconds);
        const bool is_alike = (a > 0) + (b > 0) + (c > 0) == 1;
        const int64_t one_more = a > 0 ? size(0) : b > 0 ? size(1) : size(2);
        if (is_alike && a * size(0) + b * size(1) + c * size(2) + one_more > devices) found.alike_s = std::min(found.alike_s, seconds);
      }
    }
  }
  return found;
}

StepWork small_step(uint64_t seed) {
  const RandomDeployment problem(seed, {.configurations = 3, .buckets = 3, .most_sequences = 5});
  return {problem.costs, problem.sequences};
}

TEST(DeployUnlike, OfSmallCasesIsTheBestOfAllPlansThatPlainLoopsFindAndNeverSlowerThanLikeOnes) {
  int64_t faster = 0, as_fast = 0;
  for (uint64_t seed = 200; seed < 280; ++seed) {
    const StepWork work = small_step(seed);
    const int64_t devices = 6 + static_cast<int64_t>(seed % 3);
    const ShortestPlans best = shortest_plans(work, devices);
    const Deployment unlike = deploy_unlike(work, devices, {.gap = 0, .dispatch = {.gap = 0, .nodes = 10'000'000}});
    ASSERT_EQ(unlike.empty(), best.unlike_s == no_plan_s) << seed;
    if (unlike.empty()) continue;
    EXPECT_NEAR(unlike.dispatch.makespan, best.unlike_s, 1e-9 * best.unlike_s + 1e-12) << seed;
    EXPECT_LE(unlike.lower_bound, best.unlike_s * (1 + 1e-9)) << seed;
    const Deployment alike = deploy_alike(work, devices);
    ASSERT_EQ(alike.empty(), best.alike_s == no_plan_s) << seed;
    if (alike.empty()) continue;
    EXPECT_NEAR(alike.dispatch.makespan, best.alike_s, 1e-9 * best.alike_s + 1e-12) << seed;
    EXPECT_LE(unlike.dispatch.makespan, best.alike_s * (1 + 1e-9)) << seed;
    (unlike.dispatch.makespan < best.alike_s * (1 - 1e-9) ? faster : as_fast) += 1;
  }
  EXPECT_GT(faster, 10);
  EXPECT_GT(as_fast, 10);
}

/// Limits that keep the search for unlike replicas from the best ones: like replicas are taken then (LB-33).
TEST(DeployUnlike, IsNeverSlowerThanLikeReplicasHoweverLittleItLooksFor) {
  const DeploymentLimits hurried{.close_looks = 1, .dispatch = {.nodes = 0, .rounds = 1}, .plans = 1};
  int64_t fell_back = 0;
  for (uint64_t seed = 200; seed < 400; ++seed) {
    const StepWork work = small_step(seed);
    const ShortestPlans best = shortest_plans(work, 8);
    if (best.alike_s == no_plan_s) continue;
    const Deployment unlike = deploy_unlike(work, 8, hurried);
    ASSERT_FALSE(unlike.empty()) << seed;
    EXPECT_LE(unlike.dispatch.makespan, best.alike_s * (1 + 1e-9)) << seed;
    const Deployment searched = plan_deployment(work.costs, work.sequences, 8, hurried);
    fell_back += searched.empty() || searched.dispatch.makespan > best.alike_s * (1 + 1e-9) ? 1 : 0;
  }
  EXPECT_GT(fell_back, 0);
}

/// Seconds of a step of all tasks under each system, on sixteen devices by the rates of Table 3, every row in the buckets of all tasks together.
struct SystemSeconds {
  explicit SystemSeconds(const std::vector<TaskLengths>& tasks) {
    const std::vector<int64_t> boundaries = bucket_lengths(draw(tasks, 77, 100)).tokens;
    const auto work_of = [&](const std::vector<TaskLengths>& some) {
      std::vector<int64_t> sequences = sort_into_buckets(draw(some, 77, 100), boundaries).sequences;
      while (sequences.back() == 0) sequences.pop_back();
      sequences = average_step(sequences, 100);
      sequences.resize(boundaries.size(), 0);
      return StepWork{bucket_costs(published_7b_configurations(), boundaries), sequences};
    };
    of[System::task_fused] = deploy_alike(work_of(tasks), 16).dispatch.makespan;
    of[System::lobra] = deploy_unlike(work_of(tasks), 16).dispatch.makespan;
    for (const TaskLengths& task : tasks) {
      const StepWork work = work_of({task});
      const double alike = deploy_alike(work, 16).dispatch.makespan, unlike = deploy_unlike(work, 16).dispatch.makespan;
      EXPECT_GT(alike, 0) << task.name;
      EXPECT_LE(unlike, alike * (1 + 1e-9)) << task.name;
      of[System::task_sequential] += alike;
      of[System::lobra_sequential] += unlike;
    }
  }
  std::map<System, double> of;
};

TEST(FourSystems, OfThePublishedTasksAreTheFasterTheMoreTheyMayDo) {
  for (const LengthFamily family : all_length_families) {
    for (const std::vector<std::string>& names : {std::vector<std::string>{}, six_tasks}) {
      SCOPED_TRACE(fmt::format("{} lengths, {} tasks", to_string(family), names.empty() ? 12 : names.size()));
      const std::map<System, double> seconds = SystemSeconds(published_tasks(family, names)).of;
      EXPECT_LT(seconds.at(System::lobra), seconds.at(System::lobra_sequential));
      EXPECT_LT(seconds.at(System::lobra_sequential), seconds.at(System::task_sequential));
      EXPECT_LT(seconds.at(System::lobra), 0.73 * seconds.at(System::task_fused)) << "asked for: 0.70, which gamma lengths of six tasks miss";
    }
  }
}

TEST(MakePlan, OfThePublishedTasksHasTheFourSystemsInTheirOrder) {
  const ModelConfig model = model_preset("tinyllama-1.1b");
  JobSpec spec;
  spec.adapter.r = 16;
  spec.adapter.target_modules = {"all-linear"};
  std::vector<JobShape> jobs;
  for (const TaskLengths& task : published_tasks(LengthFamily::weibull, six_tasks)) {
    jobs.push_back({.name = task.name,
                    .batch_size = task.batch / 16,
                    .lengths = truncated(task.lengths, model.context_length),
                    .adapters = adapter_shapes(spec, static_cast<int32_t>(jobs.size()), model)});
  }
  PlanOptions options;
  options.deployments = {System::task_fused, System::task_sequential, System::lobra_sequential, System::lobra};
  options.sharing = {Sharing::hybrid};
  options.orders = {PipelineOrder::automatic};
  options.orders_for_few = {};
  options.savings = {};
  const PlanningResult result = make_plan(model, cluster_of(1, 4, "A40"), jobs, options);
  std::map<System, double> seconds;
  for (const Alternative& each : result.alternatives) {
    ASSERT_TRUE(each.fits()) << to_string(each.deployment) << ": " << each.constraint;
    EXPECT_TRUE(seconds.emplace(each.deployment, each.predicted.seconds).second);
    EXPECT_EQ(each.plans.size(), is_sequential(each.deployment) ? jobs.size() : 1);
  }
  ASSERT_EQ(seconds.size(), 4u);
  EXPECT_LE(seconds[System::lobra], seconds[System::task_fused] * (1 + 1e-9));
  EXPECT_LT(seconds[System::lobra], seconds[System::lobra_sequential]);
  // A task's share of the typical step has few long rows, or none: like replicas suit it as well.
  EXPECT_LE(seconds[System::lobra_sequential], seconds[System::task_sequential] * (1 + 1e-9));
  // Of each job by itself, too.
  const auto of = [&](System system) -> const Alternative& {
    return *std::ranges::find_if(result.alternatives, [&](const Alternative& each) { return each.deployment == system; });
  };
  for (size_t job = 0; job < jobs.size(); ++job) {
    EXPECT_LE(of(System::lobra_sequential).plans[job].predicted.seconds, of(System::task_sequential).plans[job].predicted.seconds * (1 + 1e-9))
        << jobs[job].name;
  }
}

}  // namespace
}  // namespace cotune
