#pragma once

#include <string>
#include <vector>

#include "train/planned_round.h"

namespace cotune {

/// A plan of hybrid tasks in a few lines of at most 80 columns: which jobs share microbatches and why, the predicted
/// seconds of a round, and those of the alternatives.
std::vector<std::string> plan_lines(const PlannedRound& plan);

}  // namespace cotune
