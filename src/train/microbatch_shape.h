#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/job_round.h"
#include "plan/cost/stage_prices.h"
#include "schedule/step_plan.h"

namespace cotune {

/// What the price of a microbatch depends on.
struct MicrobatchShape {
  MicrobatchCounts counts;
  size_t jobs = 0;  ///< StagePrices::jobs_number of those in it
};

/// Of every microbatch of the plan. rounds: those of its batches, among others. job_count: of the run.
std::vector<MicrobatchShape> shapes_of_microbatches(const StepPlan& plan, std::span<const JobRound> rounds, size_t job_count,
                                                    StagePrices& prices);

}  // namespace cotune
