/// What a run on one device takes from a plan that was made before (`cotune plan --output`), and whether it is this
/// run's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "plan/fusion/fusion.h"
#include "plan/plan.h"

namespace cotune {

/// The run that is to follow a plan.
struct FollowingRun {
  std::vector<std::string> jobs;       ///< names, in its order
  const ModelConfig* model = nullptr;  ///< nullptr: not known, and not compared
  std::string dtype;                   ///< that it computes in; "": not known
};

struct FollowedPlan {
  Sharing sharing = Sharing::hybrid;
  Layout layout = Layout::ragged;
  int64_t chunk_size = 64;
  int64_t token_budget = 1024;
  Recompute recompute = Recompute::never;
  HybridTasks hybrid_tasks;  ///< sharing hybrid: places in FollowingRun::jobs, each once, ascending in a task
  bool operator==(const FollowedPlan&) const = default;
};

/// Adds a mistake with file, field, what was found and what is accepted for each way in which the plan is not for this
/// run: other jobs (their order does not matter), another model or dtype, more than one replica, stage or
/// tensor-parallel rank, jobs that stand in no hybrid task, a token budget below an atom or a chunk. The result then
/// means nothing.
FollowedPlan follow(const Plan& plan, const FollowingRun& run, const std::string& file, Diagnostics& mistakes);

}  // namespace cotune
