/// What every action of a rank is predicted to take, by which a rank that hangs is known from one that is slow.
#pragma once

#include <cstddef>
#include <vector>

#include "schedule/pipeline/rank_plan.h"

namespace cotune {

/// Seconds of each action in plan.ranks[rank], by plan.predicted: of what computes its own time and that of the message it waits for
/// (of a layer's recompute or backward that of the whole backward that it is a part of), of a send its message's, of what exchanges
/// gradients with other replicas exchange_s besides. 0 of what is not predicted.
std::vector<double> action_seconds(const RankPlan& plan, size_t rank, double exchange_s);

}  // namespace cotune
