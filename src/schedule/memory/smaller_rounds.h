/// What a run gives up, step by step, before it gives up a job: the token budget, then kept activations.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "jobs/job.h"
#include "schedule/memory/admission.h"
#include "schedule/step_plan.h"

namespace cotune {

/// The next step down from `policy`: half the token budget, down to the largest unit that is never split (an atom, or a
/// chunk), then recomputation unless `recompute` is never; nothing where both are used up. Sharing batch-all has no budget.
std::optional<PackingPolicy> smaller_rounds(PackingPolicy policy, Recompute recompute);

/// Why a job can never run under the limit: its predicted peak exceeds it even alone and under the last step down.
/// Nothing when it fits under `policy` or a step down from it.
/// predict_alone: the peak with this job and no other; a step down must never raise it.
std::optional<AdmissionRefusal> refuse_for_ever(int32_t job, int64_t limit_bytes, const PackingPolicy& policy,
                                                Recompute recompute,
                                                const std::function<MemoryEstimate(const PackingPolicy&)>& predict_alone);

}  // namespace cotune
