/// What plans have alive at their worst moments, counted from their actions, in the unit of worst_case.h.
#pragma once

#include <span>

#include "schedule/memory/worst_case.h"
#include "schedule/pipeline/rank_plan.h"

namespace cotune {

/// Tokens of a plan's largest microbatch, of the microbatches alive at once, and of the chains alive at once, on one rank. Tokens as
/// they go through the model, pads included.
WorstCase alive_at_most(const StepPlan& plan);

/// The same of rounds that ran at once on ranks. A token counts for the share of the model's layers that a rank holds it in, and once for
/// ranks that divide these layers: so one unit serves all divisions. are_processes: of the rank that has most; else the sum over all
/// ranks, each at its own worst moment.
WorstCase alive_at_most(std::span<const RankPlan> replicas, std::span<const PipelineLayout> layouts, bool are_processes);

}  // namespace cotune
