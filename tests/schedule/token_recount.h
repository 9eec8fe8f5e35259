/// The alignment metric counted again, token by token, from the microbatches alone (MX-21).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "schedule/step_plan.h"
#include "schedule/token_counts.h"

namespace cotune::testing {

/// By job.
inline std::map<int32_t, TokenCounts> recount_tokens(const StepPlan& plan) {
  std::map<int32_t, int64_t> own_longest;
  for (const BatchShape& batch : plan.batches) own_longest[batch.job] = std::ranges::max(batch.row_lengths);
  std::map<int32_t, TokenCounts> counts;
  for (const Microbatch& microbatch : plan.microbatches) {
    std::map<std::pair<int32_t, int32_t>, int64_t> seen;  // tokens of a job's row that this microbatch has had
    for (const Atom& atom : microbatch.atoms) {
      TokenCounts& count = counts[atom.job];
      for (const Segment& segment : atom.segments) {
        int64_t& of_row = seen[{atom.job, segment.row}];
        count.real += segment.length;
        of_row += segment.length;
        for (int64_t pad = 0; pad < segment.pad; ++pad, ++of_row) {
          if (plan.policy.layout == Layout::chunked) {
            ++count.pad_to_chunk;
          } else if (of_row < own_longest.at(atom.job)) {
            ++count.pad_to_row;
          } else {
            ++count.pad_to_mix;
          }
        }
      }
    }
  }
  return counts;
}

}  // namespace cotune::testing
