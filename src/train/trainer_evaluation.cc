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

std::vector<JobRound> Trainer::next_blocks(EvaluationOf of, std::vector<OpenEvaluation>& evaluations) {
  std::erase_if(evaluations, [of](const OpenEvaluation& each) {
    return each.job->state().status != JobStatus::running || !each.job->evaluation_due(of);
  });
  const HeldOutBlock& most = options_.held_out_block;
  HeldOutBlock taken;
  std::vector<JobRound> rounds;
  for (const OpenEvaluation& each : evaluations) {
    const HeldOutBlock block = each.job->held_out_block(each.next_row, most);
    if (block.rows == 0) continue;  // done
    if (!rounds.empty() && (taken.tokens + block.tokens > most.tokens || taken.rows + block.rows > most.rows)) break;
    try {
      rounds.push_back(each.job->evaluation_round(of, each.next_row, block.rows));
    } catch (const UserError& error) {
      fail_job(*each.job, error.what());
      return next_blocks(of, evaluations);  // anew: some may have made way for a job that takes its place
    }
    taken.tokens += block.tokens;
    taken.rows += block.rows;
  }
  return rounds;
}

void Trainer::take_blocks(std::span<const JobRound> rounds, std::vector<OpenEvaluation>& evaluations) {
  for (const JobRound& round : rounds) {
    const auto own = std::ranges::find(evaluations, &job(round.job), &OpenEvaluation::job);
    own->result.add(round);
    own->next_row += std::ssize(round.batch->rows);
    own->job->release_rows();
  }
}

void Trainer::evaluate(EvaluationOf of, const std::vector<TrainingJob*>& jobs, std::vector<TrainingJob*>& evaluated,
                       std::set<const TrainingJob*>& improved) {
  const double before = seconds_since_start();
  std::vector<OpenEvaluation> evaluations;
  for (TrainingJob* current : jobs) evaluations.push_back({.job = current});
  std::vector<JobRound> rounds = next_blocks(of, evaluations);
  if (rounds.empty()) return;
  try {
    for (; !rounds.empty(); rounds = next_blocks(of, evaluations)) {
      run_evaluation(rounds);
      take_blocks(rounds, evaluations);
    }
    if (!evaluations.empty()) ++summary_.evaluation_rounds;
  } catch (const EvaluationStopped&) {
    evaluations.clear();
    for (TrainingJob* current : jobs) current->release_rows();
  }
  evaluating_ = false;
  summary_.seconds_evaluating += seconds_since_start() - before;
  std::vector<TrainingJob*> failed;
  for (const OpenEvaluation& each : evaluations) {
    TrainingJob& current = *each.job;
    const bool best = current.finish_evaluation(of, each.result);
    if (current.state().status == JobStatus::failed) {
      failed.push_back(&current);
      continue;
    }
    if (std::ranges::count(evaluated, &current) == 0) evaluated.push_back(&current);
    if (best) improved.insert(&current);
    tell([&](RunObserver& observer) {
      observer.on_evaluation({&current, current.state().last_eval_step, each.result.loss(), each.result.accuracy(), best, seconds_since_start()});
    });
    if (of == EvaluationOf::adapter) sweeps_.arrive(current);
  }
  for (TrainingJob* current : failed) fail_with_bad_state(*current);
}

void Trainer::evaluate(const std::vector<TrainingJob*>& jobs) {
  std::vector<TrainingJob*> evaluated;
  std::set<const TrainingJob*> improved;
  for (const EvaluationOf of : {EvaluationOf::start, EvaluationOf::adapter}) {
    if (!stop_asked()) evaluate(of, jobs, evaluated, improved);
  }
  if (evaluated.empty()) return;
  const bool released = judge_candidates();
  for (TrainingJob* current : evaluated) {
    if (current->state().status == JobStatus::running) save_evaluated(*current, improved.contains(current));
  }
  if (put_candidates_aside(evaluated) || released) fill_place();
}

void Trainer::save_evaluated(TrainingJob& job, bool is_best) {
  const bool kept = is_best && keeps_best(job.spec().train);
  const bool ends = job.done() || job.stops_early();
  if (job.state().step > 0 && (kept || ends || job.checkpoint_due())) save(job);
}

}  // namespace cotune
