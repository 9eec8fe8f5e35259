#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "jobs/job_list.h"
#include "train/run_observer.h"

namespace cotune {

/// Lines for people, at most 80 columns: every few seconds a block with a line per job that has stepped and one for all that are left
/// (with an estimate for those that have not stepped yet); evaluations, starts, ends and sample answers.
class ProgressLines : public RunObserver {
 public:
  /// total_steps: the most steps of any job; names and it set the widths of the columns, which jobs that come later widen.
  ProgressLines(const std::vector<std::string>& names, int64_t total_steps);

  /// Where lines go: to standard output (console/output.h), unless this is called. shows_steps: false while something else shows how far jobs
  /// are; the blocks are then left out.
  void print_with(std::function<void(const std::string&)> print, std::function<bool()> shows_steps);

  /// Who else is told what happens: every line that is none of a block of steps.
  void tell_with(std::function<void(const std::string&)> tell) { tell_ = std::move(tell); }

  void on_job_started(const TrainingJob& job) override;
  void on_job_waiting(const TrainingJob& job) override;
  void on_job_paused(const TrainingJob& job) override;
  void on_selection(const TrainingJob& job) override;
  void on_step(const StepEvent& event) override;
  void on_round_ended(double seconds) override;
  void on_evaluation(const EvaluationEvent& event) override;
  void on_sample(const SampleEvent& event) override;
  void on_rung(const RungEvent& event) override;
  void on_job_ended(const TrainingJob& job) override;
  void on_hybrid_tasks(const PlannedRound& plan) override;
  void on_swap(const DivisionSwap& swap) override;
  void on_notice(const std::string& text) override;

 private:
  void make_room_for(const TrainingJob& job);
  void tell(const std::string& text) const;
  void tell(const TrainingJob& job, const std::string& text) const;
  std::string line(const TrainingJob& job, const std::string& text) const;
  void step_line(const StepEvent& event) const;
  void total_line() const;

  size_t name_width_, step_width_;
  std::function<void(const std::string&)> print_, tell_;
  std::function<bool()> shows_steps_ = [] { return true; };
  std::map<int32_t, StepEvent> newest_;    ///< per live job, its step since the last block
  std::map<int32_t, const TrainingJob*> unfinished_;  ///< jobs that run or wait, but for those that wait at a rung of a sweep
  SweepOfJob sweeps_;
  std::set<int32_t> selecting_;            ///< jobs whose selection has been told of
  double last_block_s_ = -1;
};

/// How a job ended, in words: one that ran is stopped with its run, which --resume goes on with.
std::string ended_text(const JobState& state);

std::string accuracy_text(double accuracy);  ///< "87.3%"; "" for NaN

}  // namespace cotune
