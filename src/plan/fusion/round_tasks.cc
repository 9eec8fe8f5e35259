#include "plan/fusion/round_tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/counted.h"
#include "base/error.h"
#include "schedule/pipeline/grouping.h"

namespace cotune {
namespace {

constexpr double nothing = 5e-4;    // of a round's time: no difference in words
constexpr size_t most_groups = 12;  // that runs are made of: fuse_jobs asks for the cost of every run

/// What tasks that pass through a pipeline together take; on one stage the sum (round_tasks.h).
class PipelineTime {
 public:
  explicit PipelineTime(int64_t stages) : stages_(static_cast<double>(stages)) {}

  void add(const TaskCost& task) {
    work_s_ += task.seconds;
    const double microbatch_s = task.seconds / static_cast<double>(task.microbatches);
    longest_s_ = std::max(longest_s_, task.seconds + (stages_ - 1) * microbatch_s);
  }
  double seconds() const { return std::max(work_s_, longest_s_) / stages_; }
  double busy() const { return work_s_ < longest_s_ ? work_s_ / longest_s_ : 1; }

 private:
  double stages_, work_s_ = 0, longest_s_ = 0;
};

/// By more than predictions cannot tell.
bool is_shorter(const RoundTasks& one, const RoundTasks& other) { return one.seconds < (1 - least_gain) * other.seconds; }

RoundTasks priced(RoundCost& cost, int64_t stages, HybridTasks tasks, const std::string& name) {
  RoundTasks result{.name = name};
  PipelineTime time(stages);
  for (std::vector<int32_t>& task : tasks) std::sort(task.begin(), task.end());
  std::sort(tasks.begin(), tasks.end());  // so that sums of equal tasks are equal
  for (const std::vector<int32_t>& task : tasks) {
    const TaskCost& of_task = cost.task(task);
    time.add(of_task);
    result.microbatches += of_task.microbatches;
    result.tokens += of_task.tokens;
    result.pads += of_task.pads;
    result.backward_layers += of_task.backward_layers;
  }
  result.seconds = cost.fixed_seconds() + time.seconds();
  result.busy = time.busy();
  result.tasks = std::move(tasks);
  return result;
}

int64_t tokens_of(const JobShape& job) {
  return static_cast<int64_t>(static_cast<double>(job.batch_size) * job.lengths.mean());
}

int64_t lowest_layer(const JobShape& job) {
  int64_t lowest = job.adapters.front().layer;
  for (const AdapterShape& each : job.adapters) lowest = std::min(lowest, each.layer);
  return lowest;
}

/// Jobs that stay together in the search, with the key that runs are ordered by.
struct Group {
  std::vector<int32_t> jobs;
  int64_t tokens = 0;
  int64_t layer = 0;
};

bool is_before(const Group& a, const Group& b) { return std::pair(a.layer, a.tokens) < std::pair(b.layer, b.tokens); }

/// One group per job, or, of many, groups of neighbours in the order that runs are made in, of about equal tokens.
std::vector<Group> groups_of(const std::vector<JobShape>& jobs, bool by_layer) {
  std::vector<Group> single;
  int64_t all_tokens = 0;
  for (size_t j = 0; j < jobs.size(); ++j) {
    single.push_back({{static_cast<int32_t>(j)}, tokens_of(jobs[j]), by_layer ? lowest_layer(jobs[j]) : 0});
    all_tokens += single.back().tokens;
  }
  if (single.size() <= most_groups) return single;
  std::stable_sort(single.begin(), single.end(), is_before);
  std::vector<Group> groups;
  int64_t before = 0;
  size_t last_share = most_groups;
  for (Group& each : single) {
    const auto share =
        static_cast<size_t>(before * static_cast<int64_t>(most_groups) / std::max<int64_t>(1, all_tokens));
    before += each.tokens;
    if (share == last_share) {
      groups.back().jobs.push_back(each.jobs.front());
      groups.back().tokens += each.tokens;
      continue;
    }
    last_share = share;
    groups.push_back(std::move(each));
  }
  return groups;
}

/// Of every way to cut the groups, in their order by layer and tokens, into runs: the one that is through a pipeline first.
HybridTasks best_pipelined_runs(const RoundJobs& round, RoundCost& cost, std::vector<Group> groups) {
  std::stable_sort(groups.begin(), groups.end(), is_before);
  HybridTasks best;
  double best_s = std::numeric_limits<double>::infinity();
  for (uint32_t cuts = 0; cuts < (uint32_t{1} << (groups.size() - 1)); ++cuts) {  // bit g: between groups g and g + 1
    HybridTasks tasks(1);
    for (size_t g = 0; g < groups.size(); ++g) {
      if (g > 0 && (cuts >> (g - 1) & 1) != 0) tasks.emplace_back();
      tasks.back().insert(tasks.back().end(), groups[g].jobs.begin(), groups[g].jobs.end());
    }
    PipelineTime time(round.stages);
    for (const std::vector<int32_t>& task : tasks) time.add(cost.task(task));
    if (time.seconds() < best_s) {
      best_s = time.seconds();
      best = std::move(tasks);
    }
  }
  return best;
}

HybridTasks best_runs(const RoundJobs& round, RoundCost& cost, bool by_layer) {
  const std::vector<Group> groups = groups_of(round.jobs, by_layer);
  if (round.stages > 1) return best_pipelined_runs(round, cost, groups);
  const auto jobs_of = [&](std::span<const int32_t> places) {
    std::vector<int32_t> jobs;
    for (const int32_t place : places) {
      const std::vector<int32_t>& own = groups[static_cast<size_t>(place)].jobs;
      jobs.insert(jobs.end(), own.begin(), own.end());
    }
    return jobs;
  };
  FusionProblem problem;
  for (const Group& group : groups) {
    problem.tokens.push_back(group.tokens);
    problem.classes.push_back(group.layer);
  }
  problem.cost = [&](std::span<const int32_t> places) {
    return FusedCost{.stages = {{.forward_s = cost.task(jobs_of(places)).seconds, .backward_s = 0, .kept_bytes = 0}}};
  };
  HybridTasks tasks;
  for (const std::vector<int32_t>& places : fuse_jobs(problem).tasks) tasks.push_back(jobs_of(places));
  return tasks;
}

std::string shorter_text(const RoundTasks& than, double seconds) {
  return fmt::format("{:.1f}% shorter than {}", 100 * (1 - seconds / than.seconds), than.name);
}

/// What makes the taken grouping shorter than another.
std::string why_shorter(const RoundTasks& taken, const RoundTasks& other) {
  std::vector<std::string> causes;
  if (taken.microbatches < other.microbatches) {
    causes.push_back(fmt::format("{} in place of {}", counted(taken.microbatches, "microbatch", "microbatches"), other.microbatches));
  }
  if (taken.pads < other.pads) causes.push_back(fmt::format("{} in place of {}", counted(taken.pads, "pad"), other.pads));
  if (taken.busy > other.busy + nothing) {
    causes.push_back(fmt::format("stages busy {:.0f}% of the time in place of {:.0f}%", 100 * taken.busy, 100 * other.busy));
  }
  if (taken.backward_layers < other.backward_layers) {
    causes.push_back(fmt::format(
        "{:.1f}% less backward below a job's own adapters",
        100 * (1 - static_cast<double>(taken.backward_layers) / static_cast<double>(other.backward_layers))));
  }
  std::string text;
  for (const std::string& cause : causes) text += (text.empty() ? ": " : ", ") + cause;
  return text;
}

std::string reason_of(const ChosenRoundTasks& chosen) {
  const RoundTasks& taken = chosen.taken();
  if (chosen.alternatives.size() == 1) return "the only job";
  const RoundTasks& fused = chosen.alternatives.front();
  if (&taken != &fused) return shorter_text(fused, taken.seconds) + why_shorter(taken, fused);
  const RoundTasks* best_split = nullptr;
  for (const RoundTasks& each : chosen.alternatives) {
    if (&each != &fused && (best_split == nullptr || each.seconds < best_split->seconds)) best_split = &each;
  }
  if (std::abs(best_split->seconds - fused.seconds) < nothing * fused.seconds)
    return "no grouping is predicted to be shorter";
  if (best_split->seconds < fused.seconds) {
    return fmt::format("{} would gain {:.1f}%, less than predictions can tell", best_split->name,
                       100 * (1 - best_split->seconds / fused.seconds));
  }
  return shorter_text(*best_split, fused.seconds) + why_shorter(fused, *best_split);
}

}  // namespace

ChosenRoundTasks choose_round_tasks(const RoundJobs& round) {
  COTUNE_CHECK(round.stages >= 1, "{} stages", round.stages);
  RoundCost cost(round);
  std::vector<int32_t> all(round.jobs.size());
  std::iota(all.begin(), all.end(), 0);
  HybridTasks apart;
  for (const int32_t job : all) apart.push_back({job});
  ChosenRoundTasks result;
  const auto add = [&](RoundTasks each) {
    const bool is_known = std::any_of(result.alternatives.begin(), result.alternatives.end(),
                                      [&](const RoundTasks& other) { return other.tasks == each.tasks; });
    if (!is_known) result.alternatives.push_back(std::move(each));
  };
  add(priced(cost, round.stages, {all}, all.size() == 1 ? "one job" : "all jobs fused"));
  add(priced(cost, round.stages, apart, "each job by itself"));
  if (all.size() > 2) {
    RoundTasks by_tokens = priced(cost, round.stages, best_runs(round, cost, false), "planned");
    RoundTasks by_layer = priced(cost, round.stages, best_runs(round, cost, true), "planned");
    add(by_layer.seconds < by_tokens.seconds ? std::move(by_layer) : std::move(by_tokens));
  }
  for (size_t i = 1; i < result.alternatives.size(); ++i) {
    const RoundTasks& each = result.alternatives[i];
    if (is_shorter(each, result.alternatives.front()) && each.seconds < result.taken().seconds) result.chosen = i;
  }
  for (size_t i = 1; round.stages > 1 && i < result.alternatives.size(); ++i) {
    const RoundTasks& each = result.alternatives[i];
    const bool is_apart = each.tasks.size() == all.size();
    if (is_apart && is_shorter(each, result.alternatives.front()) && !is_shorter(result.taken(), each)) result.chosen = i;
  }
  result.reason = reason_of(result);
  return result;
}

HybridTasks tasks_per_stage(const RoundJobs& round) {
  std::vector<double> tokens;
  for (const JobShape& job : round.jobs) tokens.push_back(static_cast<double>(tokens_of(job)));
  return balanced_buckets_by_exchange(tokens, std::min(round.stages, static_cast<int64_t>(tokens.size())));
}

RoundTasks predict_round_tasks(const RoundJobs& round, const HybridTasks& tasks, const std::string& name) {
  RoundCost cost(round);
  return priced(cost, round.stages, tasks, name);
}

}  // namespace cotune
