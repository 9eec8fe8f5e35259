// The part of a run that corrects predicted peaks by measured ones, and what follows from it: jobs that come in, rounds that grow.
#include <algorithm>
#include <cmath>
#include <map>

#include "plan/cost/time_refit.h"
#include "schedule/pipeline/alive_tokens.h"
#include "train/trainer.h"

namespace cotune {
namespace {

constexpr double least_change = 0.1;  // of a round's bytes, that it is told of

}  // namespace

bool Trainer::are_peaks_measured(std::span<const JobRound> rounds) const {
  if (!options_.learns_peaks || evaluating_ || !options_.device.is_cpu() || options_.device.is_emulated()) return false;
  // What a selection takes is no part of later rounds.
  return std::ranges::none_of(rounds, [](const JobRound& round) { return round.purpose == RoundPurpose::select; });
}

void Trainer::learn_peak_alone(const StepPlan& plan, std::span<const JobRound> rounds, int64_t bytes) {
  learn_peak(rounds, 1, alive_at_most(plan), bytes);
}

void Trainer::learn_peak_of_ranks(const PlannedRun& run, std::span<const JobRound> rounds) {
  const WorstCase alive = alive_at_most(run.plans.replicas, ranks_->layouts(), ranks_->are_processes());
  learn_peak(rounds, static_cast<int64_t>(run.round_count), alive, ranks_->times().round_bytes);
}

void Trainer::learn_peak(std::span<const JobRound> rounds, int64_t round_count, const WorstCase& alive, int64_t bytes) {
  std::map<int32_t, JobFootprint> by_job;
  for (const JobRound& round : rounds) {
    const auto [found, is_first] = by_job.try_emplace(round.job);
    JobFootprint& own = found->second;
    if (is_first) {
      own = job(round.job).footprint();
      own.row_count = own.longest_row = 0;
    }
    own.row_count = std::max(own.row_count, std::ssize(round.batch->rows));
    for (const BatchRow& row : round.batch->rows) own.longest_row = std::max(own.longest_row, std::ssize(row.tokens));
  }
  std::vector<JobFootprint> footprints;
  std::vector<int32_t> jobs;
  for (const auto& [index, footprint] : by_job) {
    footprints.push_back(footprint);
    jobs.push_back(index);
  }
  if (const std::optional<RoundPeak> expected = learned_.expect(footprints, options_.policy, alive)) {
    PredictionErrors& errors = summary_.peak_prediction_errors;
    const auto measured = static_cast<double>(bytes), count = static_cast<double>(round_count);
    errors.rounds += round_count;
    errors.before_sum += count * relative_error(static_cast<double>(expected->by_shapes), measured);
    errors.after_sum += count * relative_error(static_cast<double>(expected->learned), measured);
  }
  learned_.observe(jobs, options_.policy, alive, bytes, keeps_spare_);
  const std::optional<int64_t> correction = peak_correction();
  if (!correction || std::abs(static_cast<double>(*correction - told_correction_)) <= least_change * static_cast<double>(bytes)) return;
  told_correction_ = *correction;
  const PeakEvent event{.round = summary_.rounds, .correction_bytes = *correction, .errors = summary_.peak_prediction_errors};
  tell([&](RunObserver& observer) { observer.on_peak(event); });
}

std::optional<int64_t> Trainer::peak_correction() const {
  return learned_.correction(running_footprints(), options_.policy);
}

void Trainer::note_waiting(std::span<const int32_t> waiting) {
  least_waiting_bound_.reset();
  const int64_t learned = peak_correction().value_or(0);
  for (const int32_t index : waiting) {
    const int64_t bound = bytes_with(job(index)) - learned;
    least_waiting_bound_ = std::min(least_waiting_bound_.value_or(bound), bound);
  }
}

void Trainer::use_learned_peak() {
  if (tensor_limit_ == 0 || (!least_waiting_bound_ && ruled_out_.empty())) return;
  const int64_t learned = peak_correction().value_or(0);
  if (least_waiting_bound_ && *least_waiting_bound_ + learned <= tensor_limit_) start_jobs();
  // Jobs go before speed: what waits may need the place yet.
  while (!ruled_out_.empty() && !least_waiting_bound_) {
    const PackingPolicy larger = ruled_out_.back();
    const std::vector<JobFootprint> running = running_footprints();
    // The bound of larger rounds is too high by at least as much as that of these, as long as they keep the same.
    const int64_t from_these = larger.recompute == options_.policy.recompute ? learned : std::max<int64_t>(0, learned);
    if (running.empty() || learned_.with_correction(running, larger, from_these).total() > tensor_limit_) return;
    ruled_out_.pop_back();
    use(larger, "there is room for larger rounds");
  }
}

}  // namespace cotune
