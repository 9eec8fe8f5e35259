#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <set>

#include "base/error.h"
#include "schedule/evaluation_policy.h"
#include "train/trainer.h"

namespace cotune {
namespace {

/// Leaves an evaluation that was broken off.
class EvaluationStopped : public std::exception {};

}  // namespace

void Trainer::break_off_stopped_evaluation() const {
  if (evaluating_ && stop_asked()) throw EvaluationStopped();
}

void Trainer::run_evaluation(std::vector<JobRound>& rounds) {
  while (!rounds.empty()) {
    std::vector<BatchShape> shapes;
    for (const JobRound& round : rounds) shapes.push_back(round.batch->shape(round.job, 0));
    evaluating_ = true;
    try {
      const StepPlan plan = plan_step(shapes, evaluation_policy(options_.policy));
      run_plans({&plan, 1}, rounds);
      evaluating_ = false;
      return;
    } catch (const MemoryLimitExceeded& trouble) {
      evaluating_ = false;
      if (make_rounds_smaller(trouble.what())) continue;
      pause_a_job(trouble.what());  // its evaluation stays due
      std::erase_if(rounds, [&](const JobRound& round) { return job(round.job).state().status != JobStatus::running; });
    }
  }
}

void Trainer::evaluate(const std::vector<TrainingJob*>& jobs) {
  const double before = seconds_since_start();
  std::vector<JobRound> rounds;
  for (TrainingJob* current : jobs) {
    if (current->state().status != JobStatus::running) continue;  // makes way for another: its evaluation stays due
    try {
      rounds.push_back(current->evaluation_round());
    } catch (const UserError& error) {
      fail_job(*current, error.what());
    }
  }
  std::erase_if(rounds, [&](const JobRound& round) { return job(round.job).state().status != JobStatus::running; });
  if (rounds.empty()) return;
  try {
    run_evaluation(rounds);
    ++summary_.evaluation_rounds;
  } catch (const EvaluationStopped&) {
    rounds.clear();
  }
  evaluating_ = false;
  summary_.seconds_evaluating += seconds_since_start() - before;
  std::vector<TrainingJob*> evaluated;
  std::set<const TrainingJob*> improved;
  for (const JobRound& round : rounds) {
    TrainingJob& current = job(round.job);
    // Paused for one that took a failed job's place: its evaluation stays due.
    if (current.state().status != JobStatus::running) continue;
    const bool best = current.finish_evaluation(round);
    evaluated.push_back(&current);
    if (current.state().status == JobStatus::failed) continue;
    if (best) improved.insert(&current);
    tell([&](RunObserver& observer) {
      observer.on_evaluation({&current, round.loss(), round.row_accuracy(), best, seconds_since_start()});
    });
    sweeps_.arrive(current);
  }
  const bool released = judge_candidates();
  for (TrainingJob* current : evaluated) {
    if (current->state().status == JobStatus::failed) {
      fail_with_bad_state(*current);
    } else if (current->state().status == JobStatus::running) {
      save_evaluated(*current, improved.contains(current));
    }
  }
  if (put_candidates_aside(evaluated) || released) fill_place();
}

void Trainer::save_evaluated(TrainingJob& job, bool is_best) {
  const TrainSpec& train = job.spec().train;
  const bool mark = is_best && (train.load_best || train.early_stopping_patience > 0);
  const bool ends = job.done() || job.stops_early();
  if (job.state().step > 0 && (mark || ends || job.checkpoint_due())) save(job, mark);
}

}  // namespace cotune
