#pragma once

#include <string>
#include <vector>

#include "train/run_observer.h"

namespace cotune {

class RunPrediction;
struct SweepStanding;

/// Events as JSON lines on standard output (`--json`; fields in docs/training.md). The summary comes last.
class JsonEvents : public RunObserver {
 public:
  void on_job_started(const TrainingJob& job) override;
  void on_job_waiting(const TrainingJob& job) override;
  void on_job_paused(const TrainingJob& job) override;
  void on_selection(const TrainingJob& job) override;
  void on_step(const StepEvent& event) override;
  void on_evaluation(const EvaluationEvent& event) override;
  void on_sample(const SampleEvent& event) override;
  void on_rung(const RungEvent& event) override;
  void on_checkpoint(const TrainingJob& job) override;
  void on_job_ended(const TrainingJob& job) override;
  void on_hybrid_tasks(const PlannedRound& plan) override;
  void on_refit(const RefitEvent& event) override;
  void on_swap(const DivisionSwap& swap) override;
  void on_notice(const std::string& text) override;
};

/// The summary as one JSON object (fields in docs/training.md).
std::string summary_json(const RunSummary& summary, const std::vector<const TrainingJob*>& jobs,
                         const std::vector<SweepStanding>& sweeps, const RunPrediction& prediction);

}  // namespace cotune
