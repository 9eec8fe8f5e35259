#pragma once

#include <span>
#include <string>

#include "engine/job_round.h"
#include "schedule/step_plan.h"
#include "train/memory_relief.h"
#include "train/planned_round.h"
#include "train/run_events.h"
#include "train/run_summary.h"

namespace cotune {

class Sweeps;
class TrainingJob;
struct ReplicaPlans;
struct RankTimes;
struct SimulatedSpan;

/// Watches a run; called on the run's thread between rounds.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void on_job_started(const TrainingJob&) {}
  virtual void on_job_waiting(const TrainingJob&) {}
  virtual void on_job_paused(const TrainingJob&) {}  ///< by the user: it holds nothing in memory until it starts again
  virtual void on_selection(const TrainingJob&) {}
  /// Before a training round runs; on ranks, before the first of those that run at once. Where memory then runs short, the next
  /// plan of the same round follows.
  virtual void on_plan(const StepPlan&, std::span<const JobRound>) {}
  /// On ranks, after rounds that ran at once and before their steps, or evaluations, are told of. begin_s: by std::chrono::steady_clock
  /// in seconds. is_evaluation: of their forward actions alone.
  virtual void on_ranks(const ReplicaPlans&, const RankTimes&, double /*begin_s*/, bool /*is_evaluation*/) {}
  /// Where there is one rank, after a plan was computed: when which of its actions (on a GPU: was handed to it), by
  /// std::chrono::steady_clock in seconds; with an emulated device by the device's clock. is_evaluation: its forward actions alone.
  virtual void on_computed(const StepPlan&, std::span<const SimulatedSpan>, bool /*is_evaluation*/) {}
  virtual void on_step(const StepEvent&) {}
  virtual void on_round_ended(double /*seconds*/) {}  ///< after the steps of a round; seconds since the run began
  virtual void on_usage(const UsageEvent&) {}
  virtual void on_evaluation(const EvaluationEvent&) {}
  virtual void on_sample(const SampleEvent&) {}
  virtual void on_rung(const RungEvent&) {}          ///< after its evaluation, before it goes on or ends
  /// Rungs of this sweep were judged, or a candidate of it has ended: before checkpoints that depend on it.
  virtual void on_sweep(const Sweeps&, const std::string& /*name*/) {}
  virtual void on_saving(const TrainingJob&) {}      ///< before a checkpoint: what was told must be on disk
  virtual void on_checkpoint(const TrainingJob&) {}  ///< after it
  virtual void on_job_ended(const TrainingJob&) {}
  /// Sharing hybrid: before the first round of these hybrid tasks.
  virtual void on_hybrid_tasks(const PlannedRound&) {}
  virtual void on_refit(const RefitEvent&) {}
  virtual void on_peak(const PeakEvent&) {}
  virtual void on_swap(const DivisionSwap&) {}
  virtual void on_notice(const std::string&) {}
  /// Memory ran short: from now on the run uses this, and so must one that resumes it.
  virtual void on_relief(const MemoryRelief&) {}
  virtual void on_run_ended(const RunSummary&) {}
};

}  // namespace cotune
