#pragma once

#include <filesystem>
#include <list>

#include "engine/rank_threads.h"
#include "train/run_observer.h"

namespace cotune {

/// What the ranks of a run were planned to do, and what they did, as a file of trace events (ui.perfetto.dev): two tracks of
/// each rank's forwards, backwards and optimizer steps, those of rounds that ran at once beginning together. Of the first
/// rounds: as many as have most_spans.
class RankTrace : public RunObserver {
 public:
  static constexpr size_t most_spans = 200'000;

  explicit RankTrace(std::filesystem::path file) : file_(std::move(file)) {}

  void on_ranks(const ReplicaPlans& plans, const RankTimes& times, double begin_s) override;
  /// Writes the file, as write_trace_file does.
  void on_run_ended(const RunSummary& summary) override;

 private:
  struct Rounds {
    PipelineSchedule planned, executed;
    PipelineSimulation predicted, measured;
    int64_t first_rank = 0;  ///< of its replica
    double begin_s = 0;
  };
  std::filesystem::path file_;
  std::list<Rounds> rounds_;
  size_t spans_ = 0;
};

}  // namespace cotune
