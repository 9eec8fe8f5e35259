/// Jobs into hybrid tasks (MuxTune §3.3; MX-9, MX-13): which jobs share microbatches, and which only take turns.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "schedule/pipeline/pipeline_cluster.h"
#include "schedule/pipeline/pipeline_work.h"

namespace cotune {

/// What one microbatch of fused jobs costs.
struct FusedCost {
  std::vector<StageCost> stages;         ///< seconds, and bytes kept until its backward
  std::vector<int64_t> workspace_bytes;  ///< per stage, while it is computed; empty: none
  MessageBytes message_bytes;            ///< between two stages
  int32_t lowest_stage = 0;              ///< the lowest with an adapter of any of the jobs
  double optimizer_s = 0;
  bool operator==(const FusedCost&) const = default;
};

/// The cost of jobs fused, given by their indices in any order: of measured rates or of a model (plan/fusion/replica_jobs.h).
/// Equal sets must have equal costs. Asked for O(jobs²) sets.
using FusedCostOf = std::function<FusedCost(std::span<const int32_t> jobs)>;

/// The cost of a clock: a microbatch of each of several hybrid tasks, interleaved on every stage.
using ClockCostOf = std::function<FusedCost(std::span<const std::vector<int32_t>> tasks)>;

struct FusionProblem {
  std::vector<int64_t> tokens;  ///< per job, of one microbatch
  std::vector<int64_t> classes; ///< per job: goes before tokens in the order whose runs are tried; empty: all alike
  FusedCostOf cost;
  /// Of hybrid tasks in one clock; of one as well, which can hide what it communicates behind what nobody waits for. Empty:
  /// nothing overlaps inside a stage, tasks are added up.
  ClockCostOf clock_cost;
  int64_t microbatches = 1;     ///< C: of each hybrid task in a round
  int64_t rounds = 1;           ///< simulated; seconds are of one of them
  /// Per stage: what activations and workspace may take, once weights and the adapters of all jobs are there. Empty: no
  /// limit.
  std::vector<int64_t> memory_bytes;
  PipelineCluster cluster;      ///< links between stages
};

enum class FusionRule {
  simulated,  ///< least simulated time
  paper,      ///< Eq. 6 as it is written
};

/// Jobs of each hybrid task, indices ascending.
using HybridTasks = std::vector<std::vector<int32_t>>;

/// How long hybrid tasks take, each a bucket of its own, under the structured template.
struct FusionTime {
  double seconds = 0;      ///< of a round; infinite where they do not fit
  std::string constraint;  ///< of what does not fit: which task and stage need how much of what is there
};

struct Fusion {
  HybridTasks tasks;  ///< runs of the jobs ordered by tokens, fewest first; empty where no split fits
  FusionTime time;    ///< of tasks; where none fits, why
  double objective = 0;     ///< what the rule minimised: the time, or Eq. 6
  double lower_bound = 0;   ///< seconds that no split into contiguous runs goes below, whatever the order of microbatches
  int64_t simulated = 0;    ///< splits that were simulated
  std::vector<double> best_of_count;  ///< [tasks − 1]: least simulated seconds with so many; infinite where none was seen
};

/// Hybrid tasks are contiguous runs of the jobs in ascending order of class, then tokens (ties: cost alone, then
/// index).
///
/// paper       F(m, 1) = T(jobs 1…m) of Eq. 4 (pipeline_seconds), F(m, n) = min_i F(i, n−1) + 2C/S·Σ_s λ_s(jobs i+1…m); the n
///             with the least F. A run fits when S microbatches of it do on every stage (Eq. 5). Ties: the shorter last
///             run. Weak: only the first run pays for filling the pipeline (docs/planning.md).
/// simulated   For a falling bound on the latency of a single run, dynamic programming finds for each number of runs the
///             least total time of the slowest stage, the time that in-flight microbatches have to wait for memory
///             included. The candidates are estimated in closed form, the best of them simulated, and the borders of the
///             best moved, removed and added as long as that helps. The effort is bounded in simulated computations, so
///             equal problems have equal answers. A run fits when one microbatch of it does; with little room the
///             template launches later.
/// A single stage (pp = 1) is a pipeline like any other.
Fusion fuse_jobs(const FusionProblem& problem, FusionRule rule = FusionRule::simulated);

/// Of hybrid tasks made otherwise: all jobs fused, all apart, ….
FusionTime fusion_time(const FusionProblem& problem, const HybridTasks& tasks);

}  // namespace cotune
