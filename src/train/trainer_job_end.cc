// The part of a run that saves jobs and ends them.
#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

namespace cotune {

void Trainer::save(TrainingJob& job) {
  if (job.is_emulated()) return;
  if (options_.before_writing) options_.before_writing();
  tell([&](RunObserver& observer) { observer.on_saving(job); });
  make_room_for_files(job);
  gather_from_ranks(job);
  {
    const RankTask task = task_of("writing the checkpoint", job);
    job.checkpoint();
  }
  tell([&](RunObserver& observer) { observer.on_checkpoint(job); });
}

void Trainer::report_if_late(TrainingJob& job, int64_t now) {
  JobState& state = job.state();
  const bool is_late = job.deadline() < now;
  const bool is_told = std::exchange(state.missed_deadline, is_late);
  if (!is_late || is_told) return;
  const std::string text = fmt::format("deadline: job `{}` is late: {} has passed at step {} of {}", job.spec().name, job.spec().deadline,
                                       state.step, job.total_steps());
  tell([&](RunObserver& observer) { observer.on_notice(text); });
}

void Trainer::report_missed_deadlines(const std::vector<JobRound>& rounds) {
  const int64_t now = options_.time_of_day();
  for (const JobRound& round : rounds) report_if_late(job(round.job), now);
  for (const auto& waiting : jobs_) {
    if (waiting->state().status == JobStatus::waiting) report_if_late(*waiting, now);
  }
}

bool Trainer::leave_adapter(TrainingJob& job) {
  if (options_.before_writing) options_.before_writing();
  make_room_for_files(job);
  if (job.is_loaded()) gather_from_ranks(job);
  try {
    const RankTask task = task_of("writing the adapter", job);
    job.leave_adapter(options_.effective_configuration ? options_.effective_configuration(job) : "");
  } catch (const UserError& error) {
    fail_job(job, error.what());
    return false;
  }
  return true;
}

void Trainer::finish_job(TrainingJob& finished) {
  report_if_late(finished, options_.time_of_day());
  if (finished.is_emulated()) return end_job(finished, JobStatus::finished);
  if (leave_adapter(finished)) end_job(finished, finished.done() ? JobStatus::finished : JobStatus::stopped_early);
}

void Trainer::end_jobs_that_are_through() {
  for (const auto& job : jobs_) {
    const JobState& state = job->state();
    const bool is_through = job->is_at_its_end() || !state.stopped.empty();
    if (state.status != JobStatus::waiting || !is_through || !job->is_saved()) continue;
    if (leave_adapter(*job)) close_job(*job, job->done() && state.stopped.empty() ? JobStatus::finished : JobStatus::stopped_early);
  }
}

void Trainer::end_job(TrainingJob& ended, JobStatus status) {
  close_job(ended, status);
  if (status == JobStatus::refused) return;
  fill_place();
  evaluate_started();
}

void Trainer::close_job(TrainingJob& ended, JobStatus status) {
  ended.state().status = status;
  tell([&](RunObserver& observer) { observer.on_job_ended(ended); });
  leave_sweep(ended);
  if (status == JobStatus::refused) return;
  unload(ended);
  ended.forget_data();
}

void Trainer::fail_job(TrainingJob& failed, const std::string& reason) {
  save_if_it_has_stepped(failed);
  const std::optional<std::filesystem::path> good = latest_checkpoint_if_there(failed.folder());
  failed.state().failure =
      fmt::format("{}; {}", reason, good ? "last good checkpoint: " + good->string() : "it has no checkpoint");
  end_job(failed, JobStatus::failed);
}

void Trainer::fail_with_bad_state(TrainingJob& failed) {
  const bool good = failed.withdraw_bad_checkpoint();
  const std::optional<std::filesystem::path> newest = latest_checkpoint_if_there(failed.folder());
  const char* what = good ? "last good checkpoint" : "its only checkpoint holds the parameters that gave it";
  failed.state().failure += newest ? fmt::format("; {}: {}", what, newest->string()) : "; it has no checkpoint";
  end_job(failed, JobStatus::failed);
}

}  // namespace cotune
