#pragma once

#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/backbone.h"
#include "plan/cost/measured_times.h"
#include "schedule/memory/step_memory.h"
#include "train/run_observer.h"

namespace cotune {

/// Bytes predicted from shapes and plans beside those counted.
struct PredictedBytes {
  int64_t predicted = 0;
  int64_t measured = 0;
};

/// What a run was predicted to take, from its plans alone, beside what it took. Memory where tensors are the host's and our
/// kernels compute; time where there is a profile.
class RunPrediction : public RunObserver {
 public:
  /// times: nullptr without a profile; process_bytes: its figure, 0 without. They and the backbone must outlive this.
  /// On several ranks nothing is predicted: what they have alive together, and how they wait, depends on their times.
  RunPrediction(const Backbone& backbone, const MeasuredTimes* times, int64_t process_bytes, int64_t ranks = 1);

  void on_job_started(const TrainingJob& job) override;
  void on_plan(const StepPlan& plan, std::span<const JobRound> rounds) override;
  void on_step(const StepEvent& event) override;
  void on_round_ended(double seconds) override;
  void on_job_ended(const TrainingJob& job) override;
  void on_job_waiting(const TrainingJob& job) override { leave(job); }
  void on_job_paused(const TrainingJob& job) override { leave(job); }
  void on_run_ended(const RunSummary& summary) override;

  struct Round {
    double predicted = 0, measured = 0;  ///< seconds
  };
  /// Training rounds in which every job made a step, in order. Empty without a profile.
  const std::vector<Round>& rounds() const { return rounds_; }
  /// Over those after the first: mean of predicted over mean of measured; 0 where there are none.
  double predicted_over_measured() const;

  bool knows_memory() const { return knows_memory_; }
  /// weights, adapters, gradients, optimizer: the most between rounds; activations, chain_kv, workspace, logits: within
  /// one. By MemoryKind's names. Rounds in which a job selects (diff pruning) do not count for the former.
  const std::map<std::string, PredictedBytes>& bytes() const { return bytes_; }
  /// Per job what it holds between rounds. measured 0: it joined or left together with others.
  const std::map<std::string, PredictedBytes>& job_bytes() const { return job_bytes_; }
  /// The process at its peak: what the profile found beside tensors + weights + the most of everything else at once; a
  /// checkpoint is written in what rounds have left. Nothing without a profile.
  const std::optional<PredictedBytes>& process() const { return process_; }
  /// Seconds by profile_key, predicted, over rounds().
  const std::map<std::string, double>& operator_seconds() const { return operator_seconds_; }

 private:
  void leave(const TrainingJob& job);
  struct Job {
    std::string name;
    JobFootprint footprint;
    MemoryEstimate resident;  ///< between rounds
    bool is_diff = false, stepped = false;
  };
  bool selects(const Job& job) const;
  std::vector<AdapterShape> adapters_of(const StepPlan& plan) const;
  void predict_memory_of(const PlannedStep& step);
  void keep(const char* kind, int64_t predicted);

  const Backbone& backbone_;
  const MeasuredTimes* times_;
  int64_t process_bytes_;
  MemoryFacts facts_;
  bool knows_memory_ = false, round_stepped_ = false, jobs_left_ = false;
  std::map<int32_t, Job> live_;
  int64_t resident_before_ = 0;
  std::set<int32_t> predicted_jobs_;    ///< of the newest plan whose memory was predicted
  int64_t predicted_tokens_ = 0;        ///< the most alive in one
  int64_t most_together_ = 0;           ///< predicted: everything at once, with the holes between blocks, without weights
  std::optional<StepSeconds> pending_;
  std::chrono::steady_clock::time_point round_begin_;
  std::vector<Round> rounds_;
  std::map<std::string, PredictedBytes> bytes_, job_bytes_;
  std::optional<PredictedBytes> process_;
  std::map<std::string, double> operator_seconds_;
};

}  // namespace cotune
