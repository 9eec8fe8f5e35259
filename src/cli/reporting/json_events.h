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
  void on_peak(const PeakEvent& event) override;
  void on_swap(const DivisionSwap& swap) override;
  void on_notice(const std::string& text) override;
};

/// The summary as one JSON object (fields in docs/training.md).
std::string summary_json(const RunSummary& summary, const std::vector<const TrainingJob*>& jobs,
                         const std::vector<SweepStanding>& sweeps, const RunPrediction& prediction);

/// The summary of a start that made no training round, with speed, memory and losses of the earlier one, which trained; how the jobs and
/// sweeps stand is the summary's own. earlier: what summary.json held, or "", or damaged: then the summary as it is.
std::string with_figures_of(const std::string& earlier, const std::string& summary);

}  // namespace cotune
