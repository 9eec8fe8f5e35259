// The part of a run that searches: which candidates of sweeps train, and which go on past a rung.
#include <fmt/format.h>

#include <algorithm>

#include "train/trainer.h"

namespace cotune {

std::map<int32_t, std::string> Trainer::held_back() const {
  return options_.sweeps != nullptr ? options_.sweeps->held_back(jobs_) : std::map<int32_t, std::string>{};
}

void Trainer::tell_of_sweeps() {
  tell([&](RunObserver& observer) { observer.on_sweeps(*options_.sweeps); });
}

bool Trainer::judge_candidates() {
  if (options_.sweeps == nullptr) return false;
  const std::vector<RungEvent> events = options_.sweeps->judge(jobs_);
  if (events.empty()) return false;
  tell_of_sweeps();
  for (const RungEvent& event : events) {
    tell([&](RunObserver& observer) { observer.on_rung(event); });
  }
  return std::any_of(events.begin(), events.end(), [](const RungEvent& event) { return event.job->state().status == JobStatus::waiting; });
}

bool Trainer::put_candidates_aside(const std::vector<TrainingJob*>& evaluated) {
  if (options_.sweeps == nullptr) return false;
  bool any = false;
  for (TrainingJob* current : evaluated) {
    if (current->state().status != JobStatus::running || !options_.sweeps->waits(*current)) continue;
    if (!any) tell_of_sweeps();
    if (!current->is_saved()) save(*current, false);
    any = true;
    take_out(*current, fmt::format("halving: job `{}` waits at step {} for the other candidates", current->spec().name, current->state().step));
  }
  return any;
}

void Trainer::leave_sweep(TrainingJob& ended) {
  if (options_.sweeps == nullptr || !options_.sweeps->has(ended)) return;
  options_.sweeps->leave(ended);
  judge_candidates();
  tell_of_sweeps();
}

}  // namespace cotune
