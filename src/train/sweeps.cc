#include "train/sweeps.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "train/training_job.h"

namespace cotune {
namespace {

std::optional<int64_t> rung_at(const TrainingJob& job, int64_t step) {
  const std::vector<int64_t>& rungs = job.rungs();
  const auto found = std::lower_bound(rungs.begin(), rungs.end(), step);
  if (found == rungs.end() || *found != step) return std::nullopt;
  return found - rungs.begin();
}

std::string stop_reason(int64_t step, const RungJudgement& judgement) {
  return fmt::format("halving at step {}, rank {} of {}", step, judgement.rank, judgement.of);
}

}  // namespace

AdmissionCandidate waiting_candidate(const TrainingJob& job, int64_t job_count) {
  return {.job = job.index(),
          .priority = job.spec().priority,
          .arrival = job.index() + (job.is_at_its_end() ? job_count : 0),
          .deadline = job.deadline()};
}

CandidateScore score_of(SweepMetric metric, double loss, double accuracy) {
  return metric == SweepMetric::eval_loss ? CandidateScore{loss, 0} : CandidateScore{-accuracy, loss};
}

Sweeps::Sweep* Sweeps::sweep_of(const TrainingJob& job) {
  const auto found = sweeps_.find(job.spec().sweep.of);
  return found == sweeps_.end() || job.spec().sweep.of.empty() ? nullptr : &found->second;
}

const Sweeps::Sweep* Sweeps::sweep_of(const TrainingJob& job) const { return const_cast<Sweeps*>(this)->sweep_of(job); }

bool Sweeps::has(const TrainingJob& job) const { return sweep_of(job) != nullptr; }

void Sweeps::add(TrainingJob& job) {
  const SweepSpec& spec = job.spec().sweep;
  if (spec.of.empty()) return;
  Sweep& sweep = sweeps_.try_emplace(spec.of, Sweep{SuccessiveHalving(spec.halving.factor, spec.halving.mode), {}}).first->second;
  Candidate& own = sweep.candidates[job.index()];
  own.job = &job;
  sweep.halving.add(job.index(), std::ssize(job.rungs()));
  JobState& state = job.state();
  for (const RungRecord& record : before_[spec.of][job.spec().name]) {
    const std::optional<int64_t> rung = rung_at(job, record.step);
    if (!rung) continue;
    const CandidateScore score = score_of(spec.metric, record.loss, record.accuracy);
    if (record.judgement) {
      RungJudgement judgement = *record.judgement;
      judgement.candidate = job.index();
      judgement.rung = *rung;
      sweep.halving.restore(judgement, score);
      if (!judgement.goes_on && record.step == state.step) state.stopped = stop_reason(record.step, judgement);
      own.rungs.push_back({record.step, record.loss, record.accuracy, judgement});
    } else if (record.step == state.step) {
      sweep.halving.arrive(job.index(), *rung, score);
      own.rungs.push_back(record);
    }
  }
  const bool is_known = std::any_of(own.rungs.begin(), own.rungs.end(), [&](const RungRecord& record) { return record.step == state.step; });
  if (!is_known && state.last_eval_step == state.step) arrive(job);  // saved, and killed before it was noted
  if (has_ended(state.status)) sweep.halving.leave(job.index());
}

std::map<int32_t, std::string> Sweeps::held_back(std::span<const std::unique_ptr<TrainingJob>> jobs) const {
  std::map<int32_t, std::string> held;
  for (const auto& [name, sweep] : sweeps_) {
    int64_t running = 0, most = 0;
    std::vector<AdmissionCandidate> waiting;
    for (const auto& [index, candidate] : sweep.candidates) {
      const TrainingJob& job = *jobs[static_cast<size_t>(index)];
      most = job.spec().sweep.max_concurrent;
      if (job.state().status == JobStatus::running) ++running;
      if (job.state().status != JobStatus::waiting) continue;
      if (sweep.halving.waits(index)) {
        held[index] = fmt::format("halving: at step {} until the other candidates of `{}` have come there", job.state().step, name);
      } else {
        waiting.push_back(waiting_candidate(job, std::ssize(jobs)));
      }
    }
    if (most == 0) continue;
    std::sort(waiting.begin(), waiting.end(), goes_before);
    for (size_t i = static_cast<size_t>(std::max<int64_t>(0, most - running)); i < waiting.size(); ++i) {
      held[waiting[i].job] = fmt::format("sweep: `{}` trains {} at a time", name, most);
    }
  }
  return held;
}

void Sweeps::arrive(const TrainingJob& job) {
  Sweep* sweep = sweep_of(job);
  const JobState& state = job.state();
  const std::optional<int64_t> rung = rung_at(job, state.step);
  if (sweep == nullptr || !rung) return;
  if (const auto known = sweep->halving.judgement(job.index(), *rung)) {
    known_.push_back(*known);
    return;
  }
  sweep->halving.arrive(job.index(), *rung, score_of(job.spec().sweep.metric, state.last_eval_loss, state.last_eval_accuracy));
  sweep->candidates.at(job.index()).rungs.push_back({state.step, state.last_eval_loss, state.last_eval_accuracy, {}});
}

std::vector<RungEvent> Sweeps::judge(std::span<const std::unique_ptr<TrainingJob>> jobs) {
  std::vector<RungEvent> events;
  std::vector<RungJudgement> judgements = std::exchange(known_, {});
  for (auto& [name, sweep] : sweeps_) {
    const std::vector<RungJudgement> own = sweep.halving.judge();
    judgements.insert(judgements.end(), own.begin(), own.end());
  }
  for (const RungJudgement& judgement : judgements) {
    TrainingJob& job = *jobs[static_cast<size_t>(judgement.candidate)];
    const int64_t step = job.rungs()[static_cast<size_t>(judgement.rung)];
    std::vector<RungRecord>& rungs = sweep_of(job)->candidates.at(judgement.candidate).rungs;
    RungRecord& record = *std::find_if(rungs.begin(), rungs.end(), [step](const RungRecord& each) { return each.step == step; });
    record.judgement = judgement;
    if (!judgement.goes_on) job.state().stopped = stop_reason(step, judgement);
    events.push_back({&job, step, record.loss, record.accuracy, judgement.rank, judgement.of, judgement.goes_on});
  }
  return events;
}

bool Sweeps::waits(const TrainingJob& job) const {
  const Sweep* sweep = sweep_of(job);
  return sweep != nullptr && sweep->halving.waits(job.index());
}

void Sweeps::leave(const TrainingJob& job) {
  if (Sweep* sweep = sweep_of(job)) sweep->halving.leave(job.index());
}

}  // namespace cotune
