/// Random rounds and policies for property tests: pure functions of a seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "schedule/memory/worst_case.h"
#include "schedule/step_plan.h"

namespace cotune {

inline constexpr int64_t test_layer_count = 5;

class Dice {
 public:
  explicit Dice(uint64_t key) : key_(key) {}
  /// Uniform in [low, high].
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(uniform_below(key_, index_++, static_cast<uint64_t>(high - low + 1)));
  }

 private:
  uint64_t key_;
  uint64_t index_ = 0;
};

/// 1 to 9 jobs of 1 to 12 rows: jobs of one token, rows of a few tokens, rows around an atom's size, now and then rows
/// of thousands.
inline std::vector<BatchShape> random_round(Dice& dice) {
  static constexpr int64_t longest_of[] = {1, 3, 40, 255, 256, 257, 300, 700, 1100, 6000};
  std::vector<BatchShape> batches;
  const int64_t jobs = dice.between(1, 9);
  for (int64_t job = 0; job < jobs; ++job) {
    BatchShape batch{.job = static_cast<int32_t>(3 * job + 1), .step = dice.between(0, 50)};
    const int64_t longest = longest_of[dice.between(0, 9)];
    const int64_t rows = longest > 2000 ? dice.between(1, 2) : dice.between(1, 12);
    for (int64_t row = 0; row < rows; ++row) batch.row_lengths.push_back(dice.between(1, longest));
    batch.lowest_layer = dice.between(0, test_layer_count - 1);
    batches.push_back(batch);
  }
  return batches;
}

/// Up to four hybrid tasks of the jobs that random_round numbers; some of them in none.
inline std::vector<std::vector<int32_t>> random_tasks(Dice& dice) {
  std::vector<std::vector<int32_t>> tasks(static_cast<size_t>(dice.between(1, 4)));
  for (int32_t job = 0; job < 9; ++job) {
    const auto task = static_cast<size_t>(dice.between(0, static_cast<int64_t>(tasks.size())));
    if (task < tasks.size()) tasks[task].push_back(3 * job + 1);
  }
  return tasks;
}

inline PackingPolicy random_policy(Dice& dice) {
  static constexpr int64_t budgets[] = {256, 257, 300, 512, 1000, 1024, 4096, 100000};
  static constexpr int64_t chunk_sizes[] = {1, 16, 64, 100, 256};
  PackingPolicy policy{.sharing = static_cast<Sharing>(dice.between(0, 3)),
          .layout = static_cast<Layout>(dice.between(0, 2)),
          .token_budget = budgets[dice.between(0, 7)],
          .chunk_size = chunk_sizes[dice.between(0, 4)],
          .recompute = dice.between(0, 1) == 1,
          .layer_count = test_layer_count};
  if (policy.sharing == Sharing::hybrid && dice.between(0, 1) == 1) policy.hybrid_tasks = random_tasks(dice);
  if (dice.between(0, 2) == 0) policy.least_microbatches = dice.between(2, 12);
  return policy;
}

/// What admission knows of the jobs of a round, without adapters.
inline std::vector<JobFootprint> footprints_of(const std::vector<BatchShape>& round) {
  std::vector<JobFootprint> jobs;
  for (const BatchShape& batch : round) {
    jobs.push_back({.job = batch.job,
                    .row_count = static_cast<int64_t>(batch.row_lengths.size()),
                    .longest_row = *std::max_element(batch.row_lengths.begin(), batch.row_lengths.end())});
  }
  return jobs;
}

}  // namespace cotune
