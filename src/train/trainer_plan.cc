// The part of a run that asks the planner which jobs share microbatches, and says so.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "train/job_change_texts.h"
#include "train/trainer.h"

namespace cotune {
namespace {

/// Of a job that ran before.
std::string change_text(JobStatus status) {
  if (status == JobStatus::waiting) return "pauses";
  return status == JobStatus::stopped_early ? "stopped early" : to_string(status);
}

}  // namespace

PackingPolicy Trainer::round_policy() {
  PackingPolicy policy = options_.policy;
  if (policy.sharing != Sharing::hybrid) return policy;
  const std::vector<TrainingJob*> resident = running_jobs();
  const RoundPlanner::Answer& answer = planner_.plan(resident, policy, options_.parallel);
  std::vector<int32_t> jobs;
  for (const TrainingJob* job : resident) jobs.push_back(job->index());
  if (jobs != planned_jobs_ || policy != planned_policy_ || answer.tasks != planned_tasks_) {
    tell_of_plan(answer.round, resident);
    planned_jobs_ = std::move(jobs);
    planned_policy_ = policy;
    planned_tasks_ = answer.tasks;
  }
  policy.hybrid_tasks = answer.tasks;
  return policy;
}

void Trainer::tell_of_plan(const PlannedRound& planned, const std::vector<TrainingJob*>& resident) {
  std::vector<std::string> causes;
  if (planned_jobs_.empty()) {
    causes.push_back("start");
  } else {
    const auto was_there = [&](int32_t index) {
      return std::find(planned_jobs_.begin(), planned_jobs_.end(), index) != planned_jobs_.end();
    };
    JobChangeTexts changes;
    for (const int32_t index : planned_jobs_) {
      const TrainingJob& before = job(index);
      const JobStatus status = before.state().status;
      if (status != JobStatus::running) changes.add(before.spec().name, change_text(status));
    }
    for (const TrainingJob* job : resident) {
      if (!was_there(job->index())) changes.add(job->spec().name, "joins");
    }
    causes = changes.texts();
    const PackingPolicy& policy = options_.policy;
    if (policy.token_budget != planned_policy_.token_budget)
      causes.push_back(fmt::format("token budget {}", policy.token_budget));
    if (policy.recompute != planned_policy_.recompute) causes.push_back("recomputation");
    if (causes.empty()) causes.push_back("measured times");
  }
  PlannedRound round = planned;
  round.cause = fmt::format("{}", fmt::join(causes, ", "));
  round.round = summary_.rounds;
  tell([&](RunObserver& observer) { observer.on_hybrid_tasks(round); });
  summary_.plans.push_back(std::move(round));
}

}  // namespace cotune
