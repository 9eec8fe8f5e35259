#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/interpreter.h"
#include "train/run_observer.h"
#include "train/training_job.h"

namespace cotune {

/// How a run packs, limits and watches itself.
struct TrainerOptions {
  PackingPolicy policy;
  Recompute recompute = Recompute::automatic;  ///< automatic: only when memory demands it
  int64_t memory_limit_bytes = 0;              ///< of the whole process; 0: none
  std::vector<RunObserver*> observers;         ///< must outlive the trainer
  /// Set: save and end. A training round is finished first, an evaluation broken off after the operator at hand.
  const std::atomic<bool>* stop = nullptr;
  std::chrono::steady_clock::time_point program_start = std::chrono::steady_clock::now();
  std::function<std::string(const TrainingJob&)> effective_configuration;  ///< written beside a finished adapter
};

/// A run from start to finish: admission, rounds, evaluations, checkpoints, the end of jobs. A round is one step of every
/// live job; what shares a microbatch is the StepPlan's matter. A job is never touched by its neighbours.
class Trainer {
 public:
  Trainer(std::shared_ptr<const Backbone> backbone, std::vector<std::unique_ptr<TrainingJob>> jobs,
          TrainerOptions options);

  /// Trains until every job has ended or `stop` is set. The jobs' states say how each ended.
  RunSummary run();
  const std::vector<std::unique_ptr<TrainingJob>>& jobs() const { return jobs_; }

 private:
  void admit_jobs();
  std::vector<TrainingJob*> live_jobs() const;
  void run_round(const std::vector<TrainingJob*>& live);
  /// Runs the rounds' plan; on memory trouble with a smaller budget, then recomputation, then without the job that has
  /// to pause. Rounds that were not run come back unfinished.
  void interpret(std::vector<JobRound>& rounds);
  bool relieve_memory(const std::string& trouble, std::vector<JobRound>& rounds);
  /// Evaluates the jobs through one plan (trainer_evaluation.cc), saves them where their settings ask for it, and fails
  /// those whose held-out loss is not finite. Broken off when `stop` is set: a resumed run makes up for it.
  void evaluate(const std::vector<TrainingJob*>& jobs);
  void run_evaluation(std::vector<JobRound>& rounds);
  void break_off_stopped_evaluation() const;
  void end_job(TrainingJob& job, JobStatus status);
  /// Ends the job alone, with the reason and its last good checkpoint, which is made now if its parameters are good.
  void fail_job(TrainingJob& job, const std::string& reason);
  void save(TrainingJob& job, bool best);
  MemoryEstimate predict(std::span<const int32_t> jobs) const;
  int64_t counted_limit() const;
  TrainingJob& job(int32_t index) { return *jobs_[static_cast<size_t>(index)]; }
  double seconds_since_start() const;
  bool stop_asked() const { return options_.stop != nullptr && options_.stop->load(); }
  template <typename Call>
  void tell(Call call) {
    for (RunObserver* observer : options_.observers) call(*observer);
  }

  std::shared_ptr<const Backbone> backbone_;
  std::vector<std::unique_ptr<TrainingJob>> jobs_;
  TrainerOptions options_;
  Interpreter interpreter_;
  RunSummary summary_;
  std::vector<int32_t> paused_;            ///< by memory; they start again when another job ends
  std::vector<double> recent_rate_;        ///< per job, real tokens per second
  std::vector<TokenCounts> round_tokens_;  ///< per job, of the last plan
  bool evaluating_ = false;
  std::chrono::steady_clock::time_point start_;
};

/// Free memory of the machine now (MemAvailable, and the control group's limit), and this process's resident memory and
/// its peak. Bytes.
int64_t available_memory_bytes();
int64_t resident_bytes();
int64_t peak_resident_bytes();

}  // namespace cotune
