#include "plan/shapes/typical_step.h"

#include <algorithm>

namespace cotune {

std::vector<int64_t> quantile_lengths(const LengthHistogram& lengths, int64_t count) {
  std::vector<int64_t> result;
  const double total = lengths.total();
  size_t bin = 0;
  double below = lengths.weights.front().second;
  for (int64_t i = 0; i < count; ++i) {
    const double quantile = (static_cast<double>(i) + 0.5) / static_cast<double>(count) * total;
    while (below < quantile && bin + 1 < lengths.weights.size()) below += lengths.weights[++bin].second;
    result.push_back(lengths.weights[bin].first);
  }
  return result;
}

std::vector<StepRow> typical_step(const std::vector<JobShape>& jobs) {
  std::vector<StepRow> rows;
  int64_t longest = 0;
  size_t longest_row = 0;
  for (size_t job = 0; job < jobs.size(); ++job) {
    const LengthHistogram& lengths = jobs[job].lengths;
    for (const int64_t tokens : quantile_lengths(lengths, jobs[job].batch_size)) {
      rows.push_back({static_cast<int32_t>(job), tokens});
    }
    if (lengths.longest() > longest) {
      longest = lengths.longest();
      longest_row = rows.size() - 1;
    }
  }
  if (!rows.empty()) rows[longest_row].tokens = longest;
  return rows;
}

std::vector<StepRow> rows_of_job(const std::vector<StepRow>& step, int32_t job) {
  std::vector<StepRow> rows;
  for (const StepRow& row : step) {
    if (row.job == job) rows.push_back({0, row.tokens});
  }
  return rows;
}

}  // namespace cotune
