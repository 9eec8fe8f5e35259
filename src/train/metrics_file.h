#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "base/appended_file.h"
#include "train/run_observer.h"

namespace cotune {

/// How far a job had come when its newest checkpoint was written.
struct JobProgress {
  int64_t step = 0;
  int64_t last_eval_step = -1;
};

/// Steps that all of them had made.
int64_t steps_of(const std::map<std::string, JobProgress>& jobs);

/// How far a job has come by the file, whatever it goes on from.
struct NotedProgress {
  int64_t newest_step = 0;
  std::optional<int64_t> newest_checkpoint;
};

/// By job. Lines that cannot be read are left out; nothing is known where there is no file.
std::map<std::string, NotedProgress> noted_progress(const std::filesystem::path& path);

/// Takes back what the file says of jobs beyond their checkpoints, and ends and half a line of a run that was killed: they
/// are written again as the jobs go on, so that no event stands twice. Lines that stay keep their order and bytes. The
/// checkpoint itself is noted where the kill came before its line. Nothing happens where there is no file. Whole lines that cannot be read are
/// dropped too: what is to be said of them is returned, "" where there are none. Throws SystemError.
std::string trim_metrics(const std::filesystem::path& path, const std::map<std::string, JobProgress>& jobs);

/// Appends one JSON object per event to RUN/metrics.jsonl (docs/training.md lists the fields).
class MetricsFile : public RunObserver {
 public:
  /// append: a resumed run goes on in the file, whose seconds begin anew: the event `resume` says so. Throws SystemError when it cannot be
  /// opened, or written.
  MetricsFile(const std::filesystem::path& path, bool append);

  void on_step(const StepEvent& event) override;
  void on_job_started(const TrainingJob& job) override;
  void on_usage(const UsageEvent& event) override;
  void on_evaluation(const EvaluationEvent& event) override;
  void on_sample(const SampleEvent& event) override;
  void on_rung(const RungEvent& event) override;
  void on_saving(const TrainingJob& job) override;
  void on_checkpoint(const TrainingJob& job) override;
  void on_job_paused(const TrainingJob& job) override;
  void on_job_ended(const TrainingJob& job) override;
  void on_hybrid_tasks(const PlannedRound& plan) override;
  void on_refit(const RefitEvent& event) override;
  void on_peak(const PeakEvent& event) override;
  void on_swap(const DivisionSwap& swap) override;
  void on_notice(const std::string& text) override;

 private:
  void write(const std::string& line);

  AppendedFile file_;
};

}  // namespace cotune
