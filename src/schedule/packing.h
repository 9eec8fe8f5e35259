/// From atoms to microbatches: the packing rule that step_plan.h states. Internal to plan_step.
#pragma once

#include <span>
#include <vector>

#include "schedule/microbatch.h"
#include "schedule/step_plan.h"

namespace cotune {

/// Microbatches that are alive together, in the order of their backward: one, or those of one chain (later chunks
/// first). They go forward in reverse order.
using MicrobatchGroup = std::vector<Microbatch>;

/// Packs the jobs' atoms (`jobs[i]`: all atoms of one job, ascending) under the budget, jobs together. Groups in the
/// order of their work; at least policy.least_microbatches where units allow. Throws UserError when one atom exceeds policy.token_budget.
std::vector<MicrobatchGroup> pack_together(std::span<const std::vector<Atom>> jobs, const PackingPolicy& policy);

/// All atoms in one microbatch, whatever the budget.
Microbatch pack_everything(std::span<const std::vector<Atom>> jobs);

/// Pads every row part that ends its row to the longest part of the microbatch (layout padded).
void pad_to_longest(Microbatch& microbatch);

}  // namespace cotune
