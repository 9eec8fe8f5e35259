#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "jobs/parallel.h"
#include "plan/fusion/round_tasks.h"
#include "train/device_costs.h"
#include "train/followed_packing.h"
#include "train/planned_round.h"

namespace cotune {

class TrainingJob;

/// Asks the planner, or the rule that was asked for, which resident jobs share microbatches. A set of jobs under a token budget, a recompute rule,
/// stages and corrections is asked for once; jobs' lengths and shapes do not change during a run.
class RoundPlanner {
 public:
  RoundPlanner(ModelConfig model, DeviceCosts costs, TaskFusion fusion, std::optional<FollowedTasks> followed = std::nullopt);

  struct Answer {
    HybridTasks tasks;   ///< jobs by their index in the run
    PlannedRound round;  ///< without cause and round
  };
  /// `resident`: at least one, ascending. parallel: how ranks divide the model;
  /// rounds are priced for the longest of its pipelines. Followed tasks are taken as far as their jobs are resident; a job that stands in none,
  /// which came later, is one by itself.
  const Answer& plan(std::span<TrainingJob* const> resident, const PackingPolicy& policy, const Parallel& parallel);

  /// What is asked for from now on goes by these.
  void correct(const WorkCorrections& corrections);
  const WorkCorrections& corrections() const { return corrections_; }

 private:
  struct Job {
    JobShape shape;
    double labelled_share = 1;
  };
  const Job& job_of(const TrainingJob& job);
  Answer answer(std::span<TrainingJob* const> resident, const PackingPolicy& policy, int64_t stages);

  ModelConfig model_;
  DeviceCosts costs_;
  TaskFusion fusion_;
  std::optional<FollowedTasks> followed_;
  WorkCorrections corrections_;
  std::map<int32_t, Job> jobs_;  ///< by index
  using Key = std::tuple<std::vector<int32_t>, int64_t, bool, int64_t>;
  std::map<Key, Answer> known_;
};

}  // namespace cotune
