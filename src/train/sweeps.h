#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "schedule/memory/admission.h"
#include "schedule/successive_halving.h"
#include "train/run_events.h"

namespace cotune {

/// What a candidate's evaluation at a rung has shown, and what was decided then.
struct RungRecord {
  int64_t step = 0;
  double loss = std::numeric_limits<double>::quiet_NaN(), accuracy = std::numeric_limits<double>::quiet_NaN();
  std::optional<RungJudgement> judgement;  ///< nothing: it waits for the others
};

/// By sweep and job, the rungs that candidates have come to: what sweep.json keeps of a run for one that resumes it.
using RungRecords = std::map<std::string, std::map<std::string, std::vector<RungRecord>>>;

/// The candidates of a run's sweeps: which of them may train now, and which go on past a rung. Decisions follow from losses and
/// from the order in which candidates come to rungs, never from a clock.
class Sweeps {
 public:
  struct Candidate {
    const TrainingJob* job = nullptr;
    std::vector<RungRecord> rungs;
  };
  struct Sweep {
    SuccessiveHalving halving;
    std::map<int32_t, Candidate> candidates;  ///< by index
  };

  /// before: of the run that is resumed.
  explicit Sweeps(RungRecords before = {}) : before_(std::move(before)) {}

  /// Where the job is a candidate: counts it in. At its step or below it takes up what `before` has of it, and is stopped again
  /// where it was. The job must outlive this.
  void add(TrainingJob& job);
  bool has(const TrainingJob& job) const;
  const std::map<std::string, Sweep>& all() const { return sweeps_; }

  /// The jobs that are kept from training although there may be memory for them, with the reason.
  std::map<int32_t, std::string> held_back(std::span<const std::unique_ptr<TrainingJob>> jobs) const;

  /// After an evaluation: where its step is a rung, the candidate has come there.
  void arrive(const TrainingJob& job);
  /// What can be decided now, in order. Whoever does not go on has its state's `stopped` set.
  std::vector<RungEvent> judge(std::span<const std::unique_ptr<TrainingJob>> jobs);
  /// It waits at a rung for others to come.
  bool waits(const TrainingJob& job) const;
  /// It has ended.
  void leave(const TrainingJob& job);

 private:
  Sweep* sweep_of(const TrainingJob& job);
  const Sweep* sweep_of(const TrainingJob& job) const;

  RungRecords before_;
  std::map<std::string, Sweep> sweeps_;
  std::vector<RungJudgement> known_;  ///< from before, of candidates that have come to a rung again
};

/// A candidate that waits, as admission sees it. Those that only have to leave their adapter come after the others, which go on in
/// step with one another also in a run that was resumed.
AdmissionCandidate waiting_candidate(const TrainingJob& job, int64_t job_count);

/// How candidates are compared: the lower the better.
CandidateScore score_of(SweepMetric metric, double loss, double accuracy);

}  // namespace cotune
