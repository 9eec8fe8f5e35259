/// The proof of a step's plan. Plans of plan_step are right by construction, to which tests hold them; what a plan for ranks makes of them is
/// proven before it runs (pipeline/verify_pipeline.h).
#pragma once

#include <cstdint>

#include "schedule/step_plan.h"

namespace cotune {

/// Proves what the engine relies on; throws InternalError naming the first violation: every token of every batch is in
/// exactly one segment; atoms, segments and row parts ordered as microbatch.h says; no microbatch above the token budget
/// (batch_all excepted), no fused jobs under separate and temporal, none of two hybrid tasks, pads only where the layout
/// has them; forward before backward, each once; a chain's chunks forward in order and backward in strict reverse, its
/// activations alive in between; gradients of a job in descending atom order; the backward of a microbatch in one piece,
/// from the head down to its lowest adapted layer; one optimizer_step per job after its last backward; recompute directly
/// before the backward of the same layer; everything freed once.
void verify(const StepPlan& plan, int64_t layer_count);

}  // namespace cotune
