/// Which examples a job step takes: pure functions of the step, so that a resumed or paused job goes on as if it never
/// stopped.
#pragma once

#include <cstdint>
#include <vector>

#include "jobs/job.h"

namespace cotune {

/// The examples of one file, which stand together, and its share of an epoch.
struct ExampleShare {
  int64_t example_count = 0;
  double weight = 0;  ///< > 0, or 0 without examples
  bool operator==(const ExampleShare&) const = default;
};

/// Without shares an epoch takes every example once. With them it takes as many examples as there are, each file's share of them in
/// proportion to its weight (at least one). Each file's examples are taken in an order of their own, from one epoch on to the next,
/// and anew in another order when all were taken: none comes again before all of its file came once. Which file is next is shuffled.
struct BatchOrder {
  int64_t example_count = 0;  ///< > 0
  int64_t batch_size = 1;     ///< > 0
  uint64_t seed = 0;          ///< the job's
  Shuffle shuffle = Shuffle::epoch;
  std::vector<ExampleShare> shares = {};  ///< of all examples, in their order; or none
  bool operator==(const BatchOrder&) const = default;
};

/// ceil(example_count / batch_size): the last batch of an epoch may be short.
int64_t steps_per_epoch(const BatchOrder& order);

/// Steps of a training: `steps` when it is above 0, else ceil(epochs · steps_per_epoch), as transformers counts.
int64_t total_steps(const BatchOrder& order, int64_t steps, double epochs);

/// How many examples of each share an epoch takes: by largest remainder, the earlier share on a tie. Their sum is example_count.
std::vector<int64_t> share_sizes(const BatchOrder& order);

/// The order of the examples in an epoch (from 0): a permutation keyed by seed and epoch, or file order. With shares and without
/// shuffling, each file's examples in file order, spread evenly over the epoch.
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
