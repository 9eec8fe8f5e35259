#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "control/protocol.h"
#include "device/compute_device.h"
#include "train/run_observer.h"
#include "watch/trend.h"

namespace cotune {

/// What a run and its jobs are at, for readers on other threads: they never wait for a round.
class RunBoard : public RunObserver {
 public:
  /// memory_limit_bytes: of the run; 0: none.
  RunBoard(std::filesystem::path folder, bool stay, const ComputeDevice& device, int64_t memory_limit_bytes)
      : folder_(std::move(folder)),
        stay_(stay),
        emulated_(device.is_emulated()),
        memory_{.device = device.is_cpu() ? "cpu" : device.name, .limit_bytes = memory_limit_bytes} {}

  // From any thread.
  RunReport run() const;
  std::vector<JobReport> jobs() const;  ///< in the order in which they came
  std::set<std::string> names() const;
  RunView view() const;

  // On the run's thread.
  void show(const TrainingJob& job, bool added);
  /// How a job's loss went before this process took it up.
  void show_losses(const TrainingJob& job, std::span<const double> losses);
  JobReport job(const TrainingJob& job) const;
  /// A line of what happened, for people.
  void tell(const std::string& line);
  void set_idle(bool idle);
  void set_stopping();  ///< from any thread

  void on_job_started(const TrainingJob& job) override { update(job); }
  void on_job_waiting(const TrainingJob& job) override { update(job); }
  void on_job_paused(const TrainingJob& job) override { update(job); }
  void on_step(const StepEvent& event) override;
  void on_round_ended(double seconds) override;
  void on_usage(const UsageEvent& event) override;
  void on_evaluation(const EvaluationEvent& event) override { update(*event.job); }
  void on_checkpoint(const TrainingJob& job) override { update(job); }
  void on_job_ended(const TrainingJob& job) override { update(job); }

 private:
  struct Shown {
    JobReport report;
    double learning_rate = JobReport::unknown;
    Trend losses;
  };

  void update(const TrainingJob& job);
  RunReport report() const;  ///< under the lock
  /// What changes while the job lives; under the lock.
  static void fill(JobReport& report, const TrainingJob& job);

  std::filesystem::path folder_;
  bool stay_, emulated_;
  mutable std::mutex mutex_;
  std::map<int32_t, Shown> jobs_;
  MemoryView memory_;
  std::vector<RankView> ranks_;
  std::deque<std::string> events_;  ///< the newest
  int64_t rounds_ = 0;        ///< with steps, as RunSummary counts them
  bool has_stepped_ = false;  ///< a job, in the round at hand
  double seconds_ = 0;
  bool idle_ = false, stopping_ = false;
};

}  // namespace cotune
