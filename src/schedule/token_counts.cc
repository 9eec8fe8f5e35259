#include "schedule/token_counts.h"

#include <algorithm>
#include <map>

namespace cotune {

TokenCounts& TokenCounts::operator+=(const TokenCounts& more) {
  real += more.real;
  pad_to_row += more.pad_to_row;
  pad_to_mix += more.pad_to_mix;
  pad_to_chunk += more.pad_to_chunk;
  return *this;
}

std::vector<TokenCounts> count_tokens(const StepPlan& plan) {
  std::map<int32_t, size_t> place;
  for (size_t i = 0; i < plan.batches.size(); ++i) place[plan.batches[i].job] = i;
  std::vector<TokenCounts> counts(plan.batches.size());
  for (const Microbatch& microbatch : plan.microbatches) {
    for (const RowPart& part : row_parts(microbatch)) {
      const size_t index = place.at(part.job);
      TokenCounts& count = counts[index];
      count.real += part.length;
      if (plan.policy.layout == Layout::chunked) {
        count.pad_to_chunk += part.pad;
        continue;
      }
      const std::vector<int64_t>& rows = plan.batches[index].row_lengths;
      const int64_t own_longest = *std::max_element(rows.begin(), rows.end());
      const int64_t to_row = std::min(part.pad, std::max<int64_t>(0, own_longest - part.length));
      count.pad_to_row += to_row;
      count.pad_to_mix += part.pad - to_row;
    }
  }
  return counts;
}

}  // namespace cotune
