#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/job_round.h"
#include "schedule/step_plan.h"

namespace cotune {

/// Per microbatch of the plan: how many of its rows predict a learned token (pads enter the head, too: count_microbatch). rounds: those of its
/// batches, by job and step, among others.
std::vector<int64_t> labelled_rows(const StepPlan& plan, std::span<const JobRound> rounds);

}  // namespace cotune
