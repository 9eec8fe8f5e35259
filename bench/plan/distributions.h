/// The length distributions of bench/plan/data/length_distributions.json.
#pragma once

#include <string>
#include <vector>

#include "plan/shapes/length_histogram.h"
#include "plan/shapes/published_lengths.h"

namespace cotune {

struct TaskLengths {
  std::string name;
  LengthHistogram lengths;
  int64_t batch = 0;  ///< sequences per step
};

struct LengthDistribution {
  std::string name;
  bool is_fitted = false;  ///< to LobRA's Table 4
  std::vector<TaskLengths> tasks;
};

std::vector<LengthDistribution> read_distributions();

/// The named data sets of Table 4, all of them where none is named.
std::vector<TaskLengths> published_tasks(LengthFamily family, const std::vector<std::string>& names = {});

/// LobRA's tasks: those of 7B (§5.1), and those of the scalability study (App. B.2).
extern const std::vector<std::string> six_tasks, four_tasks;

/// The lengths of Table 3.
extern const std::vector<int64_t> table_lengths;

/// Lengths of `steps` steps of the tasks.
std::vector<int64_t> draw(const std::vector<TaskLengths>& tasks, uint64_t key, int64_t steps);

}  // namespace cotune
