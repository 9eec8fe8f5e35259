#pragma once

#include <string>
#include <vector>

#include "jobs/job_list.h"
#include "train/planned_round.h"

namespace cotune {

/// A plan of hybrid tasks in a few lines of at most 80 columns, or as many as the terminal has: which jobs share microbatches and
/// why, the predicted seconds of a round, and those of the alternatives. Of many jobs and tasks the first, and how many there are
/// (jobs/job_list.h).
std::vector<std::string> plan_lines(const PlannedRound& plan, const SweepOfJob& sweeps);

}  // namespace cotune
