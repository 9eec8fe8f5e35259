#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "cli/reporting/rank_tracks.h"
#include "schedule/action.h"
#include "schedule/pipeline/render.h"
#include "train/run_observer.h"

namespace cotune {

/// What a run did, as a file of trace events (ui.perfetto.dev): a track of rounds, evaluations and checkpoints; on one rank another of the
/// forwards and backwards of microbatches and of optimizer steps, on several the tracks of RankTracks. Of the first rounds: as many as have
/// most_spans. What it takes while the run goes on is a copy of the times that are taken anyway.
class RunTrace : public RunObserver {
 public:
  static constexpr size_t most_spans = 200'000;

  explicit RunTrace(std::filesystem::path file) : file_(std::move(file)) {}

  void on_job_started(const TrainingJob& job) override;
  void on_computed(const StepPlan& plan, std::span<const SimulatedSpan> spans, bool is_evaluation) override;
  void on_ranks(const ReplicaPlans& plans, const RankTimes& times, double begin_s, bool is_evaluation) override;
  void on_saving(const TrainingJob& job) override;
  void on_checkpoint(const TrainingJob& job) override;
  /// Writes the file. The run does not fail with it: what goes wrong is said on standard error.
  void on_run_ended(const RunSummary& summary) override;

 private:
  bool is_full() const { return rounds_.slices.size() + actions_.slices.size() + ranks_.span_count() >= most_spans; }
  std::string count_rounds(int64_t rounds, bool is_evaluation);
  void add_rounds(const std::string& name, bool is_evaluation, std::span<const StepPlan* const> plans, double start_s, double end_s);
  std::string names_of(const std::set<int32_t>& jobs) const;

  std::filesystem::path file_;
  std::map<int32_t, std::string> names_;  ///< of jobs
  TracedTrack rounds_{.name = "rounds, evaluations, checkpoints", .slices = {}};
  TracedTrack actions_{.name = "microbatches, optimizer steps", .slices = {}};  ///< on one rank
  RankTracks ranks_;
  int64_t round_count_ = 0, evaluation_count_ = 0;
  double saving_since_s_ = 0;
};

}  // namespace cotune
