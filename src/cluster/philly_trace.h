/// A synthetic trace with the published moments of the Philly trace (Jeon et al. 2019) as MuxTune's cluster simulation
/// adapts it (MX-42).
#pragma once

#include <cstdint>
#include <vector>

#include "cluster/trace.h"

namespace cotune {

struct PhillyTrace {
  uint64_t seed = 1;
  double minutes = 7 * 24 * 60;      ///< of arrivals
  double arrivals_per_minute = 2.59;
  double mean_minutes = 372.6;       ///< of durations
  double deviation_minutes = 612.9;
  std::vector<int64_t> row_tokens = {64, 128, 256};  ///< drawn per job: SST2, OpenBookQA and RTE as cut by MuxTune (published_lengths)
  std::vector<int64_t> rows = {8, 16, 32};           ///< of a step, drawn per job
  std::vector<int64_t> ranks = {8, 16, 32, 64};      ///< of LoRA, drawn per job
  int64_t tenants = 10;              ///< tenant i has a share of jobs proportional to 1/(i + 1)
  int64_t priorities = 3;            ///< 0 … priorities − 1: two thirds have 0, each further level a third of what is left
  double deadline_share = 0.3;       ///< of jobs; due after 2 to 8 times their duration
  double early_stop_share = 0.2;     ///< of jobs; they stop after 30 to 90% of their steps
};

/// Arrivals are a Poisson process; durations are log-normal with the given moments (the paper gives moments alone). A pure
/// function of its argument.
Trace philly_trace(const PhillyTrace& settings);

}  // namespace cotune
