#pragma once

#include "control/run_view.h"
#include "train/run_observer.h"

namespace cotune {

/// What views show of a rank.
RankView rank_view(const RankSummary& rank);

}  // namespace cotune
