#include "plan/shapes/typical_step.h"

#include <algorithm>

namespace cotune {

std::vector<StepRow> typical_step(const std::vector<JobShape>& jobs) {
  std::vector<StepRow> rows;
  int64_t longest = 0;
  size_t longest_row = 0;
  for (size_t job = 0; job < jobs.size(); ++job) {
    const LengthHistogram& lengths = jobs[job].lengths;
    const double total = lengths.total();
    size_t bin = 0;
    double below = lengths.weights.front().second;
    for (int64_t i = 0; i < jobs[job].batch_size; ++i) {
      const double quantile =
          (static_cast<double>(i) + 0.5) / static_cast<double>(jobs[job].batch_size) * total;
      while (below < quantile && bin + 1 < lengths.weights.size()) below += lengths.weights[++bin].second;
      rows.push_back({static_cast<int32_t>(job), lengths.weights[bin].first});
    }
    if (lengths.longest() > longest) {
      longest = lengths.longest();
      longest_row = rows.size() - 1;
    }
  }
  if (!rows.empty()) rows[longest_row].tokens = longest;
  return rows;
}

}  // namespace cotune
