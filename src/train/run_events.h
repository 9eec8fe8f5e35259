/// What observers of a run are told while it goes on (run_observer.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "device/plugin.h"
#include "schedule/step_plan.h"
#include "schedule/token_counts.h"
#include "train/prediction_errors.h"
#include "train/rank_summary.h"

namespace cotune {

class TrainingJob;

/// An optimizer step that a job has made.
struct StepEvent {
  const TrainingJob* job = nullptr;
  double loss = 0, learning_rate = 0, gradient_norm = 0;
  TokenCounts tokens;            ///< of this step's batch as it went through the model
  int64_t labelled = 0;
  double seconds = 0;            ///< since the run began
  double tokens_per_second = 0;  ///< of this job, real tokens, over its last steps
  double seconds_left = 0;       ///< at that rate
};

struct EvaluationEvent {
  const TrainingJob* job = nullptr;
  int64_t step = 0;  ///< after which the adapter was as it was evaluated; 0: before training
  double loss = 0, accuracy = 0;
  bool best = false;
  double seconds = 0;
};

/// What a sweep has decided of a candidate.
struct RungEvent {
  const TrainingJob* job = nullptr;
  int64_t step = 0;            ///< of the rung
  double loss = 0, accuracy = 0;
  int64_t rank = 0, of = 0;    ///< among those that had come there
  bool goes_on = false;
};

/// A job's greedy answer to its first held-out example, or to its first example where none is held out.
struct SampleEvent {
  const TrainingJob* job = nullptr;
  int64_t step = 0;            ///< after which the adapter was as it answers; 0: before training
  std::string prompt, answer;
  bool out_of_memory = false;  ///< no answer: no memory was left for one
};

/// What the process takes, told after a round: of the first one, then at most once a second, less often in long runs.
struct UsageEvent {
  double seconds = 0;               ///< since the run began
  int64_t steps = 0;                ///< that all jobs together have made, those before the run was resumed included
  int64_t resident_bytes = 0;       ///< of the process
  int64_t tensor_bytes = 0;         ///< of tensors on the host: alive, and kept for reuse
  std::optional<DeviceMemory> device_memory;
  double tokens_per_second = 0;     ///< of all jobs, real tokens, since the event before, evaluations included
  bool emulated = false;            ///< nothing was computed
  std::optional<double> planning_seconds, planning_exposed_seconds;  ///< on ranks, since the run began (RunSummary)
  std::span<const RankSummary> ranks = {};  ///< where there are several, so far
};

/// Prices that plans go by have changed: what was measured says so.
struct RefitEvent {
  int64_t round = 0;        ///< training rounds that the run had made
  double ratio = 1;         ///< seconds of a microbatch over those that were predicted at first
  PredictionErrors errors;  ///< so far
};

/// What rounds were seen to take has changed by what the peak of the running jobs is predicted: jobs are admitted by it.
struct PeakEvent {
  int64_t round = 0;           ///< training rounds that the run had made
  int64_t correction_bytes = 0;  ///< that predictions of the peak have less (below 0) or more than the bound from shapes
  PredictionErrors errors;     ///< so far
};

/// The ranks divide the model otherwise from now on.
struct DivisionSwap {
  int64_t round = 0;           ///< training rounds that the run had made
  std::string cause;           ///< what had changed: "`b` joins", "measured times"
  std::string before, after;   ///< as run.parallel says it
  std::string reason;          ///< in words, with numbers
  double seconds = 0;          ///< that the move took
};

}  // namespace cotune
