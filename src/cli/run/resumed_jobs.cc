#include "cli/run/resumed_jobs.h"

#include <algorithm>

#include "base/file.h"
#include "jobs/found_chunk_size.h"
#include "train/checkpoint.h"

namespace cotune {

void take_up_job_changes(JobsFileReading& reading, Diagnostics& mistakes) {
  const std::filesystem::path file = std::filesystem::path(reading.jobs_file.run.output) / "run.json";
  std::error_code unknown;
  if (!std::filesystem::exists(file, unknown)) return;  // there is no run to resume
  try {
    RunRecord record = RunRecord::from_json(read_file(file), file.string());
    RunSpec& run = reading.jobs_file.run;
    if (run.chunk_size == chunk_size_as_found) run.chunk_size = record.configuration.run.chunk_size;
    std::vector<JobSpec>& jobs = reading.jobs_file.jobs;
    for (JobSpec& job : record.configuration.jobs) {
      const bool is_there = std::any_of(jobs.begin(), jobs.end(), [&](const JobSpec& each) { return each.name == job.name; });
      if (is_there || !record.changes.added.contains(job.name)) continue;
      const bool starts_anew = !has_checkpoint(file.parent_path() / "jobs" / job.name);
      reading.jobs.push_back({.data = true, .records = true, .adapter = true, .init_from = starts_anew && !job.adapter.init_from.empty()});
      jobs.push_back(std::move(job));
    }
    for (JobSpec& job : jobs) {
      const auto priority = record.changes.priorities.find(job.name);
      if (priority != record.changes.priorities.end()) job.priority = priority->second;
    }
  } catch (const UserError& error) {
    mistakes.add(error);
  }
}

std::vector<std::string> names_of_jobs_to_go_on(const std::vector<std::unique_ptr<TrainingJob>>& jobs, const JobChanges& changes) {
  std::vector<std::string> names;
  for (const auto& job : jobs) {
    if (!changes.cancelled.contains(job->spec().name)) names.push_back(job->spec().name);
  }
  return names;
}

void leave_as_they_were(const std::vector<std::unique_ptr<TrainingJob>>& jobs, const RungRecords& rungs, JobChanges& changes, bool stays) {
  Sweeps sweeps(rungs);
  for (const auto& job : jobs) {
    if (changes.cancelled.contains(job->spec().name)) job->state().status = JobStatus::cancelled;
    sweeps.add(*job);
  }
  sweeps.judge(jobs);
  const auto is_left_to_do = [&](const std::unique_ptr<TrainingJob>& job) {
    const std::string& name = job->spec().name;
    return !changes.paused.contains(name) && !changes.cancelled.contains(name) && !job->is_at_its_end() && !sweeps.waits(*job);
  };
  if (!stays && std::none_of(jobs.begin(), jobs.end(), is_left_to_do)) changes.paused.clear();
  for (const auto& job : jobs) {
    if (changes.paused.contains(job->spec().name)) job->state().status = JobStatus::paused;
  }
}

}  // namespace cotune
