// The part of a run that is done to it while it goes on: jobs come, leave, pause and go on.
#include <fmt/format.h>

#include "base/error.h"
#include "train/trainer.h"

namespace cotune {
namespace {

void refuse_where_ended(const TrainingJob& job) {
  if (!has_ended(job.state().status)) return;
  throw_user_error("job `{}` has ended: {} at step {}", job.spec().name, to_string(job.state().status), job.state().step);
}

}  // namespace

void Trainer::save_if_it_has_stepped(TrainingJob& job) {
  // Before the first step the seed is all that there is; a selection comes again.
  if (job.is_loaded() && job.state().step > 0 && !job.is_saved()) save(job);
}

void Trainer::add_jobs(std::vector<std::unique_ptr<TrainingJob>> jobs) {
  tell_of_data(jobs);
  for (std::unique_ptr<TrainingJob>& job : jobs) {
    COTUNE_CHECK(job->index() == static_cast<int32_t>(jobs_.size()), "job {} is to be {}", job->index(), jobs_.size());
    if (rank_planner_ != nullptr) rank_planner_->add(*job);
    if (round_prices_ != nullptr) round_prices_->add(*job);
    tell([&](RunObserver& observer) { observer.on_notice(fmt::format("job `{}` was added", job->spec().name)); });
    sweeps_.add(*job);
    jobs_.push_back(std::move(job));
  }
  start_jobs();
}

void Trainer::cancel_job(TrainingJob& job) {
  refuse_where_ended(job);
  save_if_it_has_stepped(job);
  job.state().status = JobStatus::cancelled;
  tell([&](RunObserver& observer) { observer.on_job_ended(job); });
  leave_sweep(job);
  unload(job);
  job.forget_data();
  fill_place();
}

void Trainer::pause_job(TrainingJob& job) {
  refuse_where_ended(job);
  if (job.state().status == JobStatus::paused) throw_user_error("job `{}` is paused already", job.spec().name);
  save_if_it_has_stepped(job);
  job.state().status = JobStatus::paused;
  job.state().wait_reason.clear();
  unload(job);
  tell([&](RunObserver& observer) { observer.on_job_paused(job); });
  fill_place();
}

void Trainer::resume_job(TrainingJob& job) {
  refuse_where_ended(job);
  if (job.state().status != JobStatus::paused) {
    throw_user_error("job `{}` is not paused: it is {}", job.spec().name, to_string(job.state().status));
  }
  job.state().status = JobStatus::waiting;
  start_jobs();
}

void Trainer::set_priority(TrainingJob& job, int64_t priority) {
  refuse_where_ended(job);
  const int64_t before = job.spec().priority;
  job.set_priority(priority);
  tell([&](RunObserver& observer) {
    observer.on_notice(fmt::format("priority of job `{}`: {}, before {}", job.spec().name, priority, before));
  });
  std::erase(paused_, job.index());  // its new place is to be decided on, too
  start_jobs();  // it, or another one, may go before one that runs
}

}  // namespace cotune
