/// Which jobs share microbatches, on one rank or in a pipeline: hybrid tasks by the predicted time of a round (MuxTune §3.3;
/// MX-8, MX-9; with LoRAPP ML-19), with what was not taken and why. What `cotune train --sharing hybrid` asks whenever its jobs change.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/cost/round_cost.h"
#include "plan/fusion/fusion.h"

namespace cotune {

/// One way to group the jobs.
struct RoundTasks {
  std::string name;    ///< `planned`, `all jobs fused`, `each job by itself`, `one job`, or what the caller calls it
  HybridTasks tasks;   ///< places in RoundJobs::jobs, ascending in a task
  double seconds = 0;  ///< predicted, of a round: choose_round_tasks
  double busy = 1;     ///< share of it that the stages compute, (0, 1]; 1 on one rank
  int64_t microbatches = 0;  ///< of a round
  int64_t tokens = 0;        ///< that go through the model, pads included
  int64_t pads = 0;
  int64_t backward_layers = 0;  ///< Σ over tokens: layers of its microbatch's backward
  bool operator==(const RoundTasks&) const = default;
};

struct ChosenRoundTasks {
  std::vector<RoundTasks> alternatives;
  size_t chosen = 0;   ///< in alternatives
  std::string reason;  ///< in words, with numbers
  const RoundTasks& taken() const { return alternatives[chosen]; }
  bool operator==(const ChosenRoundTasks&) const = default;
};

/// Gains that predictions can tell: `all jobs fused` stays unless another is this much shorter, and in a pipeline `each job by
/// itself`, which fills it best, comes before other splits that are not this much shorter than it.
inline constexpr double least_gain = 0.01;

/// fuse_jobs over runs of the jobs ordered by tokens, and by the lowest adapted layer, then tokens (a microbatch goes
/// backward down to its lowest adapter, so a job adapted high up pays for a neighbour adapted lower down); beside them
/// all jobs fused and each by itself. Of more than 12 jobs neighbours in the order are fused beforehand into 12 groups of about
/// equal tokens. Pure.
///
/// A task t of w_t seconds in m_t microbatches takes, in a pipeline of S stages of about equal work, which tasks fill together and
/// in which a job's next step waits for its last (mLoRA §3.2, steady state)
///
///     round = fixed + max(Σ_t w_t, max_t w_t (1 + (S − 1) / m_t)) / S
///
/// the stages' work, or the longest task's own way through them. S = 1: Σ w, times add up, and fuse_jobs finds the best split
/// into runs; S > 1: every split into runs is compared. Steps that few tasks cut into more microbatches afterwards
/// (PackingPolicy::least_microbatches) are not foreseen.
ChosenRoundTasks choose_round_tasks(const RoundJobs& round);

/// As many tasks as there are stages, or one a job where there are no more jobs: the jobs' tokens of a step spread evenly over them, longest first
/// (mLoRA §3.3.1, BatchLoRA in LoRAPP; which jobs join is not said there; ML-19). Pure; the same jobs give the same tasks.
HybridTasks tasks_per_stage(const RoundJobs& round);

/// What tasks that were made otherwise are predicted to take. `tasks`: each job once.
RoundTasks predict_round_tasks(const RoundJobs& round, const HybridTasks& tasks, const std::string& name);

}  // namespace cotune
