/// Which examples a job step takes: pure functions of the step, so that a resumed or paused job goes on as if it never
/// stopped.
#pragma once

#include <cstdint>
#include <vector>

#include "jobs/job.h"

namespace cotune {

struct BatchOrder {
  int64_t example_count = 0;  ///< > 0
  int64_t batch_size = 1;     ///< > 0
  uint64_t seed = 0;          ///< the job's
  Shuffle shuffle = Shuffle::epoch;
  bool operator==(const BatchOrder&) const = default;
};

/// ceil(example_count / batch_size): the last batch of an epoch may be short.
int64_t steps_per_epoch(const BatchOrder& order);

/// Steps of a training: `steps` when it is above 0, else ceil(epochs · steps_per_epoch), as transformers counts.
int64_t total_steps(const BatchOrder& order, int64_t steps, double epochs);

/// The order of all examples in an epoch (from 0): a permutation keyed by seed and epoch, or file order.
std::vector<int64_t> epoch_order(const BatchOrder& order, int64_t epoch);

/// The examples of job step `step` (from 0), in their order in the batch. O(example_count) with shuffling.
std::vector<int64_t> batch_examples(const BatchOrder& order, int64_t step);

/// The same, remembering the epoch it was last asked for: O(batch_size) within an epoch.
class BatchSequence {
 public:
  explicit BatchSequence(const BatchOrder& order) : order_(order) {}
  std::vector<int64_t> batch(int64_t step);
  const BatchOrder& order() const { return order_; }

 private:
  BatchOrder order_;
  int64_t epoch_ = -1;
  std::vector<int64_t> examples_;
};

}  // namespace cotune
