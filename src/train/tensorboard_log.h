#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/appended_file.h"
#include "formats/tensorboard_events.h"
#include "train/metrics_file.h"
#include "train/run_observer.h"

namespace cotune {

/// Takes back what the event files below the folder say of jobs beyond their checkpoints, as trim_metrics does: whoever reads them
/// finds every step once. Files whose last record is cut off are mended. Nothing happens where there is no folder. Throws SystemError.
void trim_tensorboard(const std::filesystem::path& folder, const std::map<std::string, JobProgress>& jobs);

/// Writes a run as TensorBoard reads it (docs/watching.md): FOLDER/JOB/ has a job's scalars and sample answers under the names that
/// HF Trainer gives them, FOLDER itself what the process takes. Of an emulated run each begins with a text that says so. Each start
/// begins a new file in every folder, of which the first event has a TensorBoard that reads along forget what trim_tensorboard took back.
class TensorBoardLog : public RunObserver {
 public:
  /// time_of_day: seconds since 1970.
  explicit TensorBoardLog(std::filesystem::path folder, std::function<double()> time_of_day = tensorboard_time);

  void on_job_started(const TrainingJob& job) override;
  void on_step(const StepEvent& event) override;
  void on_usage(const UsageEvent& event) override;
  void on_evaluation(const EvaluationEvent& event) override;
  void on_sample(const SampleEvent& event) override;
  void on_job_paused(const TrainingJob& job) override;
  void on_job_ended(const TrainingJob& job) override;

 private:
  /// One that is not open is opened again by what is written next: only jobs that run take a descriptor.
  struct EventFile {
    std::filesystem::path path;
    std::unique_ptr<AppendedFile> open;
  };
  static double tensorboard_time();
  /// run: "" for the folder itself. step: from which on a reader forgets what it has read of earlier files.
  AppendedFile& file_of(const std::string& run, int64_t step);
  void write(const std::string& run, int64_t step, std::vector<TensorBoardValue> values);
  void write(const TrainingJob& job, int64_t step, std::vector<TensorBoardValue> values);
  void write_emulated(const std::string& run);

  std::filesystem::path folder_;
  std::function<double()> time_of_day_;
  std::map<std::string, EventFile> files_;
  std::map<std::string, int64_t> first_steps_;  ///< by job, the first step of this process
};

}  // namespace cotune
