#pragma once

#include <cstdint>
#include <string>

#include "train/run_observer.h"

namespace cotune {

/// Lines for people on standard output: a line per job every few steps, evaluations, ends, and the summary.
class ProgressLines : public RunObserver {
 public:
  void on_job_started(const TrainingJob& job) override;
  void on_job_waiting(const TrainingJob& job) override;
  void on_step(const StepEvent& event) override;
  void on_evaluation(const EvaluationEvent& event) override;
  void on_job_ended(const TrainingJob& job) override;
  void on_notice(const std::string& text) override;
  void on_run_ended(const RunSummary& summary) override;

 private:
  std::map<const TrainingJob*, double> last_line_s_;
  double total_tokens_ = 0;
  double last_total_s_ = 0;
};

/// The same events as JSON lines on standard output, the summary last (`--json`).
class JsonLines : public RunObserver {
 public:
  void on_step(const StepEvent& event) override;
  void on_evaluation(const EvaluationEvent& event) override;
  void on_job_ended(const TrainingJob& job) override;
  void on_notice(const std::string& text) override;
};

/// The summary as one JSON object (fields in docs/training.md).
std::string summary_json(const RunSummary& summary, const std::vector<const TrainingJob*>& jobs);

std::string bytes_text(int64_t bytes);
std::string duration_text(double seconds);

}  // namespace cotune
