#include "cli/run_board.h"

#include <unistd.h>

#include "train/checkpoint.h"
#include "train/training_job.h"

namespace cotune {
namespace {

/// Which checkpoint is the newest changes with these alone.
std::string newest_checkpoint(const TrainingJob& job) {
  const std::optional<std::filesystem::path> newest = latest_checkpoint(job.folder());
  return newest ? newest->string() : "";
}

}  // namespace

void RunBoard::fill(JobReport& report, const TrainingJob& job) {
  const JobState& state = job.state();
  report.status = to_string(state.status);
  report.priority = job.spec().priority;
  report.step = state.step;
  report.steps = job.total_steps();
  if (state.step > 0) report.loss = state.last_loss;
  report.eval_loss = state.last_eval_loss;
  report.reason = state.status == JobStatus::waiting ? state.wait_reason : state.failure;
  if (state.status != JobStatus::running) report.tokens_per_second = report.seconds_left = JobReport::unknown;
  if (job.has_left_adapter()) report.adapter = (job.folder() / "adapter").string();
}

void RunBoard::show(const TrainingJob& job, bool added) {
  JobReport report{.name = job.spec().name, .tenant = job.spec().tenant, .deadline = job.spec().deadline, .added = added};
  report.checkpoint = newest_checkpoint(job);
  fill(report, job);
  const std::lock_guard lock(mutex_);
  jobs_[job.index()] = std::move(report);
}

void RunBoard::update(const TrainingJob& job) {
  std::string checkpoint = newest_checkpoint(job);
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(job.index());
  if (found == jobs_.end()) return;  // it is shown when it has joined
  found->second.checkpoint = std::move(checkpoint);
  fill(found->second, job);
}

void RunBoard::on_step(const StepEvent& event) {
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(event.job->index());
  if (found == jobs_.end()) return;
  fill(found->second, *event.job);
  found->second.tokens_per_second = event.tokens_per_second;
  found->second.seconds_left = event.seconds_left;
}

void RunBoard::on_round_ended(double seconds) {
  const std::lock_guard lock(mutex_);
  ++rounds_;
  seconds_ = seconds;
}

RunReport RunBoard::run() const {
  const std::lock_guard lock(mutex_);
  RunReport report{.pid = ::getpid(), .folder = folder_.string(), .stay = stay_, .rounds = rounds_, .seconds = seconds_};
  report.phase = stopping_ ? "stopping" : idle_ ? "idle" : "training";
  for (const auto& [index, job] : jobs_) ++report.jobs[job.status];
  return report;
}

std::vector<JobReport> RunBoard::jobs() const {
  const std::lock_guard lock(mutex_);
  std::vector<JobReport> reports;
  for (const auto& [index, job] : jobs_) reports.push_back(job);
  return reports;
}

std::set<std::string> RunBoard::names() const {
  const std::lock_guard lock(mutex_);
  std::set<std::string> names;
  for (const auto& [index, job] : jobs_) names.insert(job.name);
  return names;
}

JobReport RunBoard::job(const TrainingJob& job) const {
  const std::lock_guard lock(mutex_);
  JobReport report = jobs_.at(job.index());
  fill(report, job);
  return report;
}

void RunBoard::set_idle(bool idle) {
  const std::lock_guard lock(mutex_);
  idle_ = idle;
}

void RunBoard::set_stopping() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
}

}  // namespace cotune
