// The part of a run that searches: which candidates of sweeps train, and which go on past a rung.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "train/trainer.h"

namespace cotune {

void Trainer::tell_of_sweep(const std::string& name) {
  if (options_.before_writing) options_.before_writing();
  tell([&](RunObserver& observer) { observer.on_sweep(sweeps_, name); });
}

bool Trainer::judge_candidates() {
  const std::vector<RungEvent> events = sweeps_.judge(jobs_);
  std::set<std::string> changed;
  for (const RungEvent& event : events) changed.insert(event.job->spec().sweep.of);
  for (const std::string& name : changed) tell_of_sweep(name);
  for (const RungEvent& event : events) {
    tell([&](RunObserver& observer) { observer.on_rung(event); });
  }
  return std::any_of(events.begin(), events.end(), [](const RungEvent& event) { return event.job->state().status == JobStatus::waiting; });
}

bool Trainer::put_candidates_aside(const std::vector<TrainingJob*>& evaluated) {
  std::set<std::string> told;
  for (TrainingJob* current : evaluated) {
    if (current->state().status != JobStatus::running || !sweeps_.waits(*current)) continue;
    if (told.insert(current->spec().sweep.of).second) tell_of_sweep(current->spec().sweep.of);
    if (!current->is_saved()) save(*current);
    take_out(*current, fmt::format("halving: job `{}` waits at step {} for the other candidates", current->spec().name, current->state().step));
  }
  return !told.empty();
}

void Trainer::leave_sweep(TrainingJob& ended) {
  if (!sweeps_.has(ended)) return;
  sweeps_.leave(ended);
  judge_candidates();
  tell_of_sweep(ended.spec().sweep.of);
}

}  // namespace cotune
