#pragma once

#include "control/run_view.h"
#include "train/rank_summary.h"

namespace cotune {

/// What views show of a rank.
RankView rank_view(const RankSummary& rank);

}  // namespace cotune
