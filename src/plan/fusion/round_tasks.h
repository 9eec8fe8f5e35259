/// Which jobs share microbatches on one rank: hybrid tasks by the predicted time of a round (MuxTune §3.3; MX-8, MX-9),
/// with what was not taken and why. What `cotune train --sharing hybrid` asks whenever its jobs change.
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
  double seconds = 0;  ///< predicted, of a round
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

/// Splits are taken for gains that predictions can tell: `all jobs fused` stays unless another is this much shorter.
inline constexpr double least_gain = 0.01;

/// fuse_jobs over runs of the jobs ordered by tokens, and by the lowest adapted layer, then tokens (a microbatch goes
/// backward down to its lowest adapter, so a job adapted high up pays for a neighbour adapted lower down); beside them
/// all jobs fused and each by itself. On one rank times add up, so fuse_jobs finds the best of all splits into runs. Of
/// more than 12 jobs neighbours in the order are fused beforehand into 12 groups of about equal tokens. Pure.
ChosenRoundTasks choose_round_tasks(const RoundJobs& round);

/// What tasks that were made otherwise are predicted to take. `tasks`: each job once.
RoundTasks predict_round_tasks(const RoundJobs& round, const HybridTasks& tasks, const std::string& name);

}  // namespace cotune
