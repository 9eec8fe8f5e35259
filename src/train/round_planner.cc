#include "train/round_planner.h"

#include <fmt/format.h>

#include <algorithm>

#include "train/training_job.h"

namespace cotune {
namespace {

JobGrouping named(const RoundTasks& tasks, std::span<TrainingJob* const> resident) {
  JobGrouping grouping{
      .name = tasks.name, .seconds = tasks.seconds, .microbatches = tasks.microbatches, .tokens = tasks.tokens};
  for (const std::vector<int32_t>& task : tasks.tasks) {
    std::vector<std::string>& names = grouping.tasks.emplace_back();
    for (const int32_t place : task) names.push_back(resident[static_cast<size_t>(place)]->spec().name);
  }
  return grouping;
}

/// The tasks as far as their jobs are resident, by place; further residents each by itself.
HybridTasks of_resident(const HybridTasks& tasks, std::span<TrainingJob* const> resident) {
  HybridTasks result;
  std::vector<bool> has_task(resident.size());
  for (const std::vector<int32_t>& task : tasks) {
    std::vector<int32_t> places;
    for (size_t place = 0; place < resident.size(); ++place) {
      if (std::find(task.begin(), task.end(), resident[place]->index()) != task.end()) {
        places.push_back(static_cast<int32_t>(place));
        has_task[place] = true;
      }
    }
    if (!places.empty()) result.push_back(std::move(places));
  }
  for (size_t place = 0; place < resident.size(); ++place) {
    if (!has_task[place]) result.push_back({static_cast<int32_t>(place)});
  }
  return result;
}

/// Takes these tasks, whatever was chosen; `author` says so.
void prescribe(ChosenRoundTasks& chosen, RoundTasks own, const std::string& author) {
  const RoundTasks& best = chosen.taken();
  chosen.reason = fmt::format("{} says so; {}", author,
                              best.tasks == own.tasks      ? "it is what would be chosen here"
                              : best.seconds < own.seconds ? fmt::format("{} would be {:.1f}% shorter", best.name,
                                                                         100 * (1 - best.seconds / own.seconds))
                                                           : fmt::format("{} would be no shorter", best.name));
  std::erase_if(chosen.alternatives, [&](const RoundTasks& each) { return each.tasks == own.tasks; });
  chosen.alternatives.insert(chosen.alternatives.begin(), std::move(own));
  chosen.chosen = 0;
}

}  // namespace

RoundPlanner::RoundPlanner(ModelConfig model, DeviceCosts costs, TaskFusion fusion, std::optional<FollowedTasks> followed)
    : model_(std::move(model)), costs_(std::move(costs)), fusion_(fusion), followed_(std::move(followed)) {}

const RoundPlanner::Job& RoundPlanner::job_of(const TrainingJob& job) {
  const auto [found, is_new] = jobs_.try_emplace(job.index());
  if (!is_new) return found->second;
  Job& own = found->second;
  const Dataset& data = job.data().train;
  own.shape = job.shape();
  own.labelled_share = static_cast<double>(data.learned_count()) / static_cast<double>(data.token_count());
  return own;
}

const RoundPlanner::Answer& RoundPlanner::plan(std::span<TrainingJob* const> resident, const PackingPolicy& policy,
                                                 const Parallel& parallel) {
  int64_t stages = 1;
  for (const ReplicaDegrees& replica : parallel.replicas) stages = std::max(stages, replica.pipeline);
  std::vector<int32_t> indices;
  for (const TrainingJob* job : resident) indices.push_back(job->index());
  const Key key{std::move(indices), policy.token_budget, policy.recompute, stages};
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  return known_.emplace(key, answer(resident, policy, stages)).first->second;
}

void RoundPlanner::correct(const WorkCorrections& corrections) {
  if (corrections == corrections_) return;
  corrections_ = corrections;
  known_.clear();
}

RoundPlanner::Answer RoundPlanner::answer(std::span<TrainingJob* const> resident, const PackingPolicy& policy, int64_t stages) {
  RoundJobs jobs{
      .model = model_, .jobs = {}, .labelled_shares = {}, .policy = policy, .machine = costs_.machine, .stages = stages, .corrections = corrections_};
  for (const TrainingJob* job : resident) {
    const Job& own = job_of(*job);
    JobShape& shape = jobs.jobs.emplace_back(own.shape);
    for (AdapterShape& adapter : shape.adapters) adapter.job = static_cast<int32_t>(jobs.jobs.size()) - 1;
    jobs.labelled_shares.push_back(own.labelled_share);
  }
  ChosenRoundTasks chosen = choose_round_tasks(jobs);
  if (followed_) {
    prescribe(chosen, predict_round_tasks(jobs, of_resident(followed_->tasks, resident), "of " + followed_->file), followed_->file);
  } else if (fusion_ == TaskFusion::stages) {
    prescribe(chosen, predict_round_tasks(jobs, tasks_per_stage(jobs), "as many as stages"), "fusion: stages");
  }
  Answer result;
  for (const std::vector<int32_t>& task : chosen.taken().tasks) {
    std::vector<int32_t>& indices = result.tasks.emplace_back();
    for (const int32_t place : task) indices.push_back(resident[static_cast<size_t>(place)]->index());
  }
  result.round = {.token_budget = policy.token_budget,
                  .recompute = policy.recompute,
                  .chosen = chosen.chosen,
                  .reason = chosen.reason,
                  .costs = costs_.source + (corrections_.is_none() ? "" : ", refitted to measured times")};
  for (const RoundTasks& each : chosen.alternatives) result.round.alternatives.push_back(named(each, resident));
  return result;
}

}  // namespace cotune
