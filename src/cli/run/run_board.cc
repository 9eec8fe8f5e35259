#include "cli/run/run_board.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "cli/reporting/rank_view.h"
#include "train/checkpoint.h"
#include "train/training_job.h"

namespace cotune {
namespace {

constexpr size_t most_events = 32;  // as many as stand below a table

/// Who asks may stand in another working directory.
std::string absolute_text(const std::filesystem::path& path) { return std::filesystem::absolute(path).lexically_normal().string(); }

/// Which checkpoint is the newest changes with these alone.
std::string newest_checkpoint(const TrainingJob& job) {
  const std::optional<std::filesystem::path> newest = latest_checkpoint_if_there(job.folder());
  return newest ? absolute_text(*newest) : "";
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
  report.eval_accuracy = state.last_eval_accuracy;
  if (const JobResult result = job.result(); result.eval_step > 0) {
    report.result_loss = result.eval_loss;
    report.result_accuracy = result.eval_accuracy;
  }
  report.reason = state.status != JobStatus::waiting ? state.end_reason() : state.wait_reason.empty() ? "is about to start" : state.wait_reason;
  if (state.status != JobStatus::running) report.tokens_per_second = report.seconds_left = JobReport::unknown;
  if (job.has_left_adapter()) report.adapter = absolute_text(job.folder() / "adapter");
}

void RunBoard::show(const TrainingJob& job, bool added) {
  JobReport report{.name = job.spec().name,
                   .tenant = job.spec().tenant,
                   .sweep = job.spec().sweep.of,
                   .by_accuracy = job.spec().sweep.metric == SweepMetric::eval_accuracy,
                   .deadline = job.spec().deadline,
                   .added = added};
  report.checkpoint = newest_checkpoint(job);
  fill(report, job);
  const std::lock_guard lock(mutex_);
  jobs_[job.index()].report = std::move(report);
}

void RunBoard::show_losses(const TrainingJob& job, std::span<const double> losses) {
  const std::lock_guard lock(mutex_);
  for (const double loss : losses) jobs_.at(job.index()).losses.add(loss);
}

void RunBoard::update(const TrainingJob& job) {
  std::string checkpoint = newest_checkpoint(job);
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(job.index());
  if (found == jobs_.end()) return;  // it is shown when it has joined
  found->second.report.checkpoint = std::move(checkpoint);
  fill(found->second.report, job);
}

void RunBoard::on_step(const StepEvent& event) {
  const std::lock_guard lock(mutex_);
  has_stepped_ = true;
  const auto found = jobs_.find(event.job->index());
  if (found == jobs_.end()) return;
  Shown& shown = found->second;
  fill(shown.report, *event.job);
  shown.report.tokens_per_second = event.tokens_per_second;
  shown.report.seconds_left = event.seconds_left;
  shown.learning_rate = event.learning_rate;
  if (!event.job->is_emulated()) shown.losses.add(event.loss);
}

void RunBoard::on_usage(const UsageEvent& event) {
  const std::lock_guard lock(mutex_);
  memory_.used_bytes = event.device_memory ? event.device_memory->held_bytes : event.resident_bytes;
  memory_.peak_bytes = std::max(memory_.peak_bytes, event.device_memory ? event.device_memory->peak_held_bytes : event.resident_bytes);
  if (event.device_memory && memory_.limit_bytes == 0) memory_.limit_bytes = event.device_memory->total_bytes;
  ranks_.clear();
  for (const RankSummary& rank : event.ranks) ranks_.push_back(rank_view(rank));
}

void RunBoard::on_round_ended(double seconds) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(has_stepped_, false)) ++rounds_;
  seconds_ = seconds;
}

RunReport RunBoard::run() const {
  const std::lock_guard lock(mutex_);
  return report();
}

RunReport RunBoard::report() const {
  RunReport report{.pid = ::getpid(), .folder = folder_.string(), .stay = stay_, .emulated = emulated_, .rounds = rounds_, .seconds = seconds_};
  report.phase = stopping_ ? "stopping" : idle_ ? "idle" : "training";
  for (const auto& [index, job] : jobs_) ++report.jobs[job.report.status];
  return report;
}

std::vector<JobReport> RunBoard::jobs() const {
  const std::lock_guard lock(mutex_);
  std::vector<JobReport> reports;
  for (const auto& [index, job] : jobs_) reports.push_back(job.report);
  return reports;
}

std::set<std::string> RunBoard::names() const {
  const std::lock_guard lock(mutex_);
  std::set<std::string> names;
  for (const auto& [index, job] : jobs_) names.insert(job.report.name);
  return names;
}

JobReport RunBoard::job(const TrainingJob& job) const {
  const std::lock_guard lock(mutex_);
  JobReport report = jobs_.at(job.index()).report;
  fill(report, job);
  return report;
}

RunView RunBoard::view() const {
  const std::lock_guard lock(mutex_);
  RunView view{.run = report(), .memory = memory_, .ranks = ranks_, .events = {events_.begin(), events_.end()}};
  double rate = 0, left = 0;
  for (const auto& [index, job] : jobs_) {
    view.jobs.push_back({.report = job.report, .learning_rate = job.learning_rate, .losses = job.losses.points()});
    if (std::isnan(job.report.tokens_per_second)) continue;
    rate += job.report.tokens_per_second;
    left = std::max(left, job.report.seconds_left);
  }
  if (rate > 0) view.tokens_per_second = rate;
  if (rate > 0) view.seconds_left = left;
  return view;
}

void RunBoard::tell(const std::string& line) {
  const std::lock_guard lock(mutex_);
  events_.push_back(line);
  if (events_.size() > most_events) events_.pop_front();
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
