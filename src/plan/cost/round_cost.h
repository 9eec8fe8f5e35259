/// What a round takes on one rank, hybrid task by hybrid task: jobs packed as plan_step packs them, every microbatch
/// priced by the operators that its actions execute. On one rank nothing overlaps, so a round's time is the sum over
/// its tasks (the fixed costs of each microbatch, its weights read once more, its pads) and of what no grouping
/// changes.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "plan/cost/operator_seconds.h"
#include "plan/cost/refitted_prices.h"
#include "plan/shapes/job_shape.h"
#include "schedule/step_plan.h"

namespace cotune {

/// The jobs of a round, and on what it runs.
struct RoundJobs {
  ModelConfig model;
  std::vector<JobShape> jobs;           ///< their AdapterShape::job is their place; at least one adapter each
  std::vector<double> labelled_shares;  ///< per job, [0, 1]: of its tokens; empty: all tokens are labelled
  PackingPolicy policy;                 ///< sharing, layer_count and hybrid_tasks are not read
  StageMachine machine;
  int64_t stages = 1;                   ///< of the pipeline that tasks go through; RoundCost prices whole tasks and does not read it
  WorkCorrections corrections;          ///< by what was measured
};

/// One hybrid task in a round.
struct TaskCost {
  double seconds = 0;
  int64_t microbatches = 0;
  int64_t tokens = 0;  ///< that go through the model, pads included
  int64_t pads = 0;
  int64_t backward_layers = 0;  ///< Σ over tokens: layers of its microbatch's backward
  bool operator==(const TaskCost&) const = default;
};

/// Each job's batch has its lengths at the quantiles (quantile_lengths). Layers that are adapted alike are priced once,
/// so a microbatch costs a few dozen operators whatever the depth. Pure: equal jobs have equal costs.
class RoundCost {
 public:
  explicit RoundCost(const RoundJobs& round);

  /// `jobs`: places, at least one, in any order. Asked for again it is a look-up.
  const TaskCost& task(std::span<const int32_t> jobs);

  /// Of a round whatever the tasks: optimizer steps, and with measured times what a round takes by itself.
  double fixed_seconds() const { return fixed_s_; }

 private:
  TaskCost price(const std::vector<int32_t>& jobs) const;
  void shorten_model();

  RoundJobs round_;
  ModelConfig model_;                   ///< of layers that stand for all: at most three of each run of like ones
  std::vector<int64_t> layers_like_;    ///< per layer of model_: how many of the real one it stands for
  std::vector<AdapterShape> adapters_;  ///< on model_
  std::vector<BatchShape> batches_;     ///< per job; lowest_layer is of model_
  std::vector<double> round_terms_;     ///< measured seconds per term of round_key; empty without a profile
  double fixed_s_ = 0;
  std::map<std::vector<int32_t>, TaskCost> known_;
};

}  // namespace cotune
