/// Every contiguous run of jobs as a possible hybrid task: what fusion chooses from.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/fusion/fusion.h"
#include "schedule/pipeline/template_makespan.h"

namespace cotune {

/// One possible hybrid task.
struct JobRun {
  BucketTimes times;
  std::vector<int64_t> workspace_bytes;
  bool fits = true;          ///< one microbatch does, on every stage
  double latency_s = 0;      ///< mean of forward and backward over the stages
  double work_s = 0;         ///< C microbatches on its slowest stage, or waiting for memory with no larger workspace about
  double backward_s = 0;     ///< the backwards of these, on the slowest
  double fill_s = 0;         ///< a forward's way to the last stage
  double drain_s = 0;        ///< an error's way from there
};

/// A split: end of each run, ascending, the last the number of jobs.
using RunEnds = std::vector<int32_t>;

class JobRuns {
 public:
  explicit JobRuns(const FusionProblem& problem);

  int32_t job_count() const { return static_cast<int32_t>(order_.size()); }
  int32_t stage_count() const { return stage_count_; }
  const std::vector<int32_t>& order() const { return order_; }
  /// Jobs `first` to `end` − 1 of the order.
  const JobRun& run(int32_t first, int32_t end) const {
    return runs_[static_cast<size_t>(first) * order_.size() + static_cast<size_t>(end - 1)];
  }
  /// Indices in the problem, ascending in a task.
  HybridTasks tasks(const RunEnds& ends) const;

 private:
  std::vector<int32_t> order_;
  int32_t stage_count_ = 0;
  std::vector<JobRun> runs_;  // [first, end − 1]
};

JobRun job_run(const FusionProblem& problem, const FusedCost& cost);

/// Seconds of C microbatches on the slowest stage. With room for q of them on a stage, q go from there to the head and back
/// in turn. `kept_bytes_limit`: per stage, at least one of them; empty: no limit.
double run_work_s(const JobRun& run, int64_t microbatches, std::span<const int64_t> kept_bytes_limit);

/// Simulates hybrid tasks as buckets of the template.
class RoundSimulator {
 public:
  RoundSimulator(const FusionProblem& problem, int32_t stage_count);

  /// Seconds of a round; infinite where a run does not fit beside the largest workspace of all.
  double seconds(std::span<const JobRun* const> runs);
  /// Per stage, of the last call.
  std::vector<int64_t> peak_kept_bytes() const { return simulator_.peak_kept_bytes(); }
  /// Computations simulated so far.
  int64_t computations() const { return simulator_.computations(); }

 private:
  const FusionProblem& problem_;
  TemplateSimulator simulator_;
  std::vector<const JobRun*> launch_;
  std::vector<const BucketTimes*> buckets_;
  std::vector<int64_t> limit_;
};

/// fuse_jobs with the runs at hand.
Fusion fuse_runs(const FusionProblem& problem, const JobRuns& runs, FusionRule rule);

/// Eq. 6 as it is written: ends of the runs and its value; nothing where no split fits.
struct PaperSplit {
  RunEnds ends;
  double objective = 0;
};
std::optional<PaperSplit> paper_split(const FusionProblem& problem, const JobRuns& runs);

}  // namespace cotune
