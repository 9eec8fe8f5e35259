#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "schedule/action.h"
#include "train/run_observer.h"

namespace cotune {

/// What a run on one rank did, as a file of trace events (ui.perfetto.dev): a track of rounds, evaluations and checkpoints, and one of
/// the forwards and backwards of microbatches and of optimizer steps. Of the first most_spans of them. What it takes while the run
/// goes on is a copy of the times that are taken anyway.
class RunTrace : public RunObserver {
 public:
  static constexpr size_t most_spans = 200'000;

  explicit RunTrace(std::filesystem::path file) : file_(std::move(file)) {}

  void on_job_started(const TrainingJob& job) override;
  void on_computed(const StepPlan& plan, std::span<const SimulatedSpan> spans, bool is_evaluation) override;
  void on_saving(const TrainingJob& job) override;
  void on_checkpoint(const TrainingJob& job) override;
  /// Writes the file, as write_trace_file does.
  void on_run_ended(const RunSummary& summary) override;

 private:
  enum class Track { rounds = 1, microbatches = 2 };
  struct Slice {
    Track track = Track::rounds;
    std::string name;
    const char* category = "";
    double start_s = 0, end_s = 0;
    std::string jobs;
    int64_t tokens = 0;
  };

  std::filesystem::path file_;
  std::map<int32_t, std::string> names_;  ///< of jobs
  std::vector<Slice> slices_;
  int64_t rounds_ = 0, evaluations_ = 0;
  double saving_since_s_ = 0;
};

}  // namespace cotune
