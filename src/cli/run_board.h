#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "control/protocol.h"
#include "train/run_observer.h"

namespace cotune {

/// What a run and its jobs are at, for readers on other threads: they never wait for a round.
class RunBoard : public RunObserver {
 public:
  RunBoard(std::filesystem::path folder, bool stay) : folder_(std::move(folder)), stay_(stay) {}

  // From any thread.
  RunReport run() const;
  std::vector<JobReport> jobs() const;  ///< in the order in which they came
  std::set<std::string> names() const;

  // On the run's thread.
  void show(const TrainingJob& job, bool added);
  JobReport job(const TrainingJob& job) const;
  void set_idle(bool idle);
  void set_stopping();  ///< from any thread

  void on_job_started(const TrainingJob& job) override { update(job); }
  void on_job_waiting(const TrainingJob& job) override { update(job); }
  void on_job_paused(const TrainingJob& job) override { update(job); }
  void on_step(const StepEvent& event) override;
  void on_round_ended(double seconds) override;
  void on_evaluation(const EvaluationEvent& event) override { update(*event.job); }
  void on_checkpoint(const TrainingJob& job) override { update(job); }
  void on_job_ended(const TrainingJob& job) override { update(job); }

 private:
  void update(const TrainingJob& job);
  /// What changes while the job lives; under the lock.
  static void fill(JobReport& report, const TrainingJob& job);

  std::filesystem::path folder_;
  bool stay_;
  mutable std::mutex mutex_;
  std::map<int32_t, JobReport> jobs_;
  int64_t rounds_ = 0;
  double seconds_ = 0;
  bool idle_ = false, stopping_ = false;
};

}  // namespace cotune
