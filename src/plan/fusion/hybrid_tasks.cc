#include "plan/fusion/hybrid_tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/never.h"
#include "plan/fusion/job_runs.h"
#include "schedule/pipeline/default_order.h"

namespace cotune {
namespace {

constexpr double near_the_best = 1.01;  // by the template: worth ordering
constexpr int64_t most_exchanges = 64;
constexpr int64_t computations_to_exchange = 10'000;

/// The tasks of a bucket one after the other in a clock.
FusedCost one_after_the_other(std::span<const FusedCost> costs, const std::vector<int32_t>& tasks) {
  FusedCost sum = costs[static_cast<size_t>(tasks.front())];
  for (size_t i = 1; i < tasks.size(); ++i) {
    const FusedCost& next = costs[static_cast<size_t>(tasks[i])];
    for (size_t s = 0; s < sum.stages.size(); ++s) {
      StageCost& stage = sum.stages[s];
      stage.forward_s += next.stages[s].forward_s;
      // Below a task's lowest stage it has no backward and keeps nothing.
      const auto has_backward = [s](const FusedCost& cost) { return static_cast<size_t>(cost.lowest_stage) <= s; };
      if (!has_backward(sum)) stage = {stage.forward_s, 0, 0};
      if (has_backward(next)) {
        stage.backward_s += next.stages[s].backward_s;
        stage.kept_bytes += next.stages[s].kept_bytes;
      }
      if (!sum.workspace_bytes.empty()) sum.workspace_bytes[s] = std::max(sum.workspace_bytes[s], next.workspace_bytes[s]);
    }
    sum.message_bytes += next.message_bytes;
    sum.lowest_stage = std::min(sum.lowest_stage, next.lowest_stage);
    sum.optimizer_s += next.optimizer_s;
  }
  return sum;
}

std::vector<FusedCost> costs_of(const FusionProblem& problem, const HybridTasks& tasks) {
  std::vector<FusedCost> costs;
  for (const std::vector<int32_t>& jobs : tasks) costs.push_back(problem.cost(jobs));
  return costs;
}

/// What buckets of some hybrid tasks cost; each bucket is asked for once.
class ClockCosts {
 public:
  ClockCosts(const FusionProblem& problem, const HybridTasks& tasks)
      : problem_(problem), tasks_(tasks), costs_(costs_of(problem, tasks)) {}

  /// Of each task by itself, nothing hidden.
  const std::vector<FusedCost>& alone() const { return costs_; }

  const FusedCost& of(const std::vector<int32_t>& bucket) {
    const auto [found, is_new] = known_.try_emplace(bucket);
    if (is_new) found->second = problem_.clock_cost ? overlapped(bucket) : one_after_the_other(costs_, bucket);
    return found->second;
  }

 private:
  FusedCost overlapped(const std::vector<int32_t>& bucket) const {
    HybridTasks tasks;
    for (const int32_t task : bucket) tasks.push_back(tasks_[static_cast<size_t>(task)]);
    return problem_.clock_cost(tasks);
  }

  const FusionProblem& problem_;
  const HybridTasks& tasks_;
  std::vector<FusedCost> costs_;
  std::map<std::vector<int32_t>, FusedCost> known_;
};

/// Numbers of buckets that are tried, falling: all of them where they are added up or few; else the shares of the tasks that
/// two, three or four in a clock leave, and some between.
std::vector<int64_t> bucket_counts(const FusionProblem& problem, int64_t tasks) {
  constexpr int64_t few_tasks = 12;
  std::vector<int64_t> counts;
  if (!problem.clock_cost || tasks <= few_tasks) {
    for (int64_t count = tasks; count >= 1; --count) counts.push_back(count);
    return counts;
  }
  for (const double share : {1.0, 0.875, 0.75, 2.0 / 3, 0.5, 1.0 / 3, 0.25}) {
    counts.push_back(static_cast<int64_t>(std::ceil(share * static_cast<double>(tasks))));
  }
  return counts;
}

class Arranger {
 public:
  Arranger(const FusionProblem& problem, HybridTaskChoice& choice)
      : problem_(problem), choice_(choice), clocks_(problem, choice.tasks) {
    choice.microbatch_tokens.clear();
    for (const std::vector<int32_t>& jobs : choice.tasks) {
      int64_t tokens = 0;
      for (const int32_t job : jobs) tokens += problem.tokens[static_cast<size_t>(job)];
      choice.microbatch_tokens.push_back(tokens);
    }
    choice.microbatches = problem.microbatches;
  }

  /// The best number of buckets, under the template.
  void group() {
    std::vector<double> latencies;
    const std::vector<FusedCost>& costs = clocks_.alone();
    for (const FusedCost& cost : costs) latencies.push_back(cost.stages.front().forward_s + cost.stages.front().backward_s);
    RoundSimulator simulator(problem_, static_cast<int32_t>(costs.front().stages.size()));
    choice_.template_seconds = never;
    choice_.seconds_of_bucket_count.assign(costs.size(), never);
    // From most to fewest: the first ones are often the best, and many others cannot be as short.
    for (const int64_t count : bucket_counts(problem_, static_cast<int64_t>(costs.size()))) {
      const Buckets buckets = balanced_buckets(latencies, count);
      std::vector<JobRun> runs;
      for (const std::vector<int32_t>& bucket : buckets) runs.push_back(job_run(problem_, clocks_.of(bucket)));
      std::vector<const JobRun*> split;
      for (const JobRun& run : runs) split.push_back(&run);
      double& seconds = choice_.seconds_of_bucket_count[static_cast<size_t>(count - 1)];
      seconds = least_seconds(runs);
      if (seconds > choice_.template_seconds * (1 + 1e-9)) continue;
      seconds = simulator.seconds(split);
      if (seconds < never && seconds <= choice_.template_seconds * (1 + 1e-12)) {
        choice_.template_seconds = seconds;
        choice_.buckets = buckets;
        choice_.activation_bytes = simulator.peak_kept_bytes();
      }
    }
    choice_.order = "template";
    choice_.seconds = choice_.template_seconds;
    describe();
  }

  /// The best order of what group() has chosen.
  std::pair<PipelineWork, ComputeOrder> order() {
    PipelineWork work = round_of_buckets(problem_, choice_.tasks, choice_.buckets);
    std::vector<int64_t> limit = problem_.memory_bytes;
    for (size_t s = 0; s < limit.size(); ++s) limit[s] -= choice_.workspace_bytes[s];
    const auto computations = static_cast<int64_t>(2 * work.microbatches.size()) * work.stage_count();
    ChosenOrder best =
        choose_order(work, problem_.cluster, limit, std::min(most_exchanges, computations_to_exchange / computations));
    choice_.order = best.name;
    choice_.seconds = best.makespan_s / static_cast<double>(problem_.rounds);
    choice_.activation_bytes = peak_kept_bytes(work, best.order);
    describe();
    return {std::move(work), std::move(best.order)};
  }

 private:
  /// No template is shorter: the last stage waits for the first microbatch, works on all, and its last error goes down.
  double least_seconds(const std::vector<JobRun>& runs) const {
    double work_s = 0, fill_s = 0, drain_s = never, longest_s = -1;
    for (const JobRun& run : runs) {
      if (!run.fits) return never;
      const BucketStage& last = run.times.stages.back();
      work_s += static_cast<double>(problem_.microbatches) * (last.forward_s + last.backward_s);
      drain_s = std::min(drain_s, run.drain_s);
      if (run.latency_s > longest_s) fill_s = run.fill_s;
      longest_s = std::max(longest_s, run.latency_s);
    }
    return work_s + (fill_s + drain_s) / static_cast<double>(problem_.rounds);
  }

  /// What follows from tasks, buckets and seconds.
  void describe() {
    const size_t stages = clocks_.alone().front().stages.size();
    choice_.workspace_bytes.assign(stages, 0);
    for (const std::vector<int32_t>& bucket : choice_.buckets) {
      const FusedCost& cost = clocks_.of(bucket);
      for (size_t s = 0; s < cost.workspace_bytes.size(); ++s) {
        choice_.workspace_bytes[s] = std::max(choice_.workspace_bytes[s], cost.workspace_bytes[s]);
      }
    }
    choice_.backward_ratio.clear();
    for (const std::vector<int32_t>& bucket : choice_.buckets) {
      const FusedCost& cost = clocks_.of(bucket);
      double forward_s = 0, backward_s = 0;
      for (size_t s = 0; s < stages; ++s) {
        forward_s += cost.stages[s].forward_s;
        if (static_cast<size_t>(cost.lowest_stage) <= s) backward_s += cost.stages[s].backward_s;
      }
      choice_.backward_ratio.push_back(backward_s / forward_s);
    }
  }

  const FusionProblem& problem_;
  HybridTaskChoice& choice_;
  ClockCosts clocks_;
};

/// The alternatives of one problem, without what does not differ.
std::vector<HybridTaskChoice> alternatives(const FusionProblem& problem) {
  const size_t jobs = problem.tokens.size();
  HybridTasks apart(jobs), fused(1);
  for (size_t job = 0; job < jobs; ++job) {
    apart[job] = {static_cast<int32_t>(job)};
    fused[0].push_back(static_cast<int32_t>(job));
  }
  std::vector<HybridTaskChoice> result;
  const auto add = [&](const std::string& name, HybridTasks tasks, const std::string& constraint) {
    const auto same_set = [](HybridTasks a, HybridTasks b) {
      std::sort(a.begin(), a.end());
      std::sort(b.begin(), b.end());
      return a == b;
    };
    if (!tasks.empty() && std::any_of(result.begin(), result.end(), [&](const HybridTaskChoice& each) {
          return same_set(each.tasks, tasks);
        })) {
      return;
    }
    result.push_back({.name = name, .microbatches = problem.microbatches, .tasks = std::move(tasks), .template_seconds = never,
                      .seconds = never,
                      .rejected_for = constraint});
  };
  const JobRuns runs(problem);
  Fusion planned = fuse_runs(problem, runs, FusionRule::simulated);
  add("planned", std::move(planned.tasks), planned.time.constraint);
  Fusion paper = fuse_runs(problem, runs, FusionRule::paper);
  if (!paper.tasks.empty()) add("the paper's fusion", std::move(paper.tasks), "");
  add("all jobs fused", fused, "");
  add("each job by itself", apart, "");
  return result;
}

}  // namespace

PipelineWork round_of_buckets(const FusionProblem& problem, const HybridTasks& tasks, const Buckets& buckets) {
  ClockCosts clocks(problem, tasks);
  PipelineWork work;
  std::vector<PipelineMicrobatch> microbatches;
  for (size_t b = 0; b < buckets.size(); ++b) {
    const FusedCost& cost = clocks.of(buckets[b]);
    const auto bucket = static_cast<int32_t>(b);
    work.rank_count = static_cast<int32_t>(cost.stages.size());
    work.jobs.push_back({.job = bucket, .lowest_stage = cost.lowest_stage, .optimizer_s = cost.optimizer_s});
    microbatches.push_back(
        {.hybrid_task = bucket, .jobs = {{bucket, 0}}, .message_bytes = cost.message_bytes, .cost = cost.stages});
  }
  for (int64_t round = 0; round < problem.rounds; ++round) {
    for (PipelineMicrobatch& microbatch : microbatches) {
      microbatch.round = round;
      microbatch.jobs[0].step = round;
      work.microbatches.insert(work.microbatches.end(), static_cast<size_t>(problem.microbatches), microbatch);
    }
  }
  work.stage_rank = one_stage_per_rank(work.rank_count);
  check(work);
  return work;
}

ChosenHybridTasks choose_hybrid_tasks(std::span<const FusionProblem> problems) {
  struct Candidate {
    const FusionProblem* problem;
    HybridTaskChoice choice;
  };
  std::vector<Candidate> candidates;
  double shortest = never;
  for (const FusionProblem& problem : problems) {
    for (HybridTaskChoice& choice : alternatives(problem)) {
      if (!choice.tasks.empty()) {
        Arranger(problem, choice).group();
        if (choice.seconds == never) choice.rejected_for = fusion_time(problem, choice.tasks).constraint;
      }
      shortest = std::min(shortest, choice.template_seconds);
      candidates.push_back({&problem, std::move(choice)});
    }
  }
  ChosenHybridTasks result;
  result.chosen.seconds = never;
  size_t chosen = candidates.size();
  for (size_t i = 0; i < candidates.size(); ++i) {
    HybridTaskChoice& choice = candidates[i].choice;
    if (!choice.fits() || choice.template_seconds > near_the_best * shortest) continue;
    auto [work, order] = Arranger(*candidates[i].problem, choice).order();
    if (chosen < candidates.size() && choice.seconds >= candidates[chosen].choice.seconds * (1 - 1e-9)) continue;
    chosen = i;
    result.work = std::move(work);
    result.compute_order = std::move(order);
  }
  for (size_t i = 0; i < candidates.size(); ++i) {
    HybridTaskChoice& choice = candidates[i].choice;
    if (i == chosen) continue;
    if (choice.fits()) {
      const HybridTaskChoice& best = candidates[chosen].choice;
      const bool both_are_ordered = choice.template_seconds <= near_the_best * shortest;
      const double ratio =
          both_are_ordered ? choice.seconds / best.seconds : choice.template_seconds / best.template_seconds;
      choice.rejected_for = fmt::format("{:.1f}% slower", 100 * (ratio - 1));
    }
    result.rejected.push_back(std::move(choice));
  }
  if (chosen < candidates.size()) result.chosen = std::move(candidates[chosen].choice);
  return result;
}

}  // namespace cotune
