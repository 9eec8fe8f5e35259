#pragma once

#include <filesystem>
#include <fstream>

#include "train/run_observer.h"

namespace cotune {

/// Appends one JSON object per event to RUN/metrics.jsonl (docs/training.md lists the fields).
class MetricsFile : public RunObserver {
 public:
  /// append: a resumed run goes on in the file. Throws SystemError when it cannot be opened.
  MetricsFile(const std::filesystem::path& path, bool append);

  void on_step(const StepEvent& event) override;
  void on_evaluation(const EvaluationEvent& event) override;
  void on_checkpoint(const TrainingJob& job) override;
  void on_job_ended(const TrainingJob& job) override;
  void on_notice(const std::string& text) override;

 private:
  void write(const std::string& line);

  std::filesystem::path path_;
  std::ofstream stream_;
};

}  // namespace cotune
