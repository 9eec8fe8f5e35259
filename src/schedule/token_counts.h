/// The tokens of a step, counted.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/step_plan.h"

namespace cotune {

/// Tokens that go through the model, by what they are. real + pad = processed.
struct TokenCounts {
  int64_t real = 0;
  int64_t pad_to_row = 0;    ///< padded to the job's own longest row (MuxTune bills these to the user)
  int64_t pad_to_mix = 0;    ///< padded to the longest row of the microbatch
  int64_t pad_to_chunk = 0;  ///< padded to whole chunks
  int64_t processed() const { return real + pad_to_row + pad_to_mix + pad_to_chunk; }
  TokenCounts& operator+=(const TokenCounts& more);
  bool operator==(const TokenCounts&) const = default;
};

/// Counts per batch of the plan, in the order of StepPlan::batches (MuxTune §3.5's metric).
std::vector<TokenCounts> count_tokens(const StepPlan& plan);

}  // namespace cotune
