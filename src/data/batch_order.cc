#include "data/batch_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/random.h"

namespace cotune {
namespace {

std::vector<int64_t> cut(const BatchOrder& order, const std::vector<int64_t>& epoch, int64_t step_in_epoch) {
  const int64_t begin = step_in_epoch * order.batch_size;
  const int64_t end = std::min(begin + order.batch_size, order.example_count);
  return {epoch.begin() + begin, epoch.begin() + end};
}

}  // namespace

int64_t steps_per_epoch(const BatchOrder& order) {
  COTUNE_CHECK(order.example_count > 0 && order.batch_size > 0);
  return (order.example_count - 1) / order.batch_size + 1;
}

int64_t total_steps(const BatchOrder& order, int64_t steps, double epochs) {
  if (steps > 0) return steps;
  return static_cast<int64_t>(std::ceil(epochs * static_cast<double>(steps_per_epoch(order))));
}

std::vector<int64_t> epoch_order(const BatchOrder& order, int64_t epoch) {
  COTUNE_CHECK(epoch >= 0);
  if (order.shuffle == Shuffle::epoch) {
    const uint64_t key = mix_key(mix_key(order.seed, key_of("epoch order")), static_cast<uint64_t>(epoch));
    return permutation(key, order.example_count);
  }
  std::vector<int64_t> examples(static_cast<size_t>(order.example_count));
  std::iota(examples.begin(), examples.end(), int64_t{0});
  return examples;
}

std::vector<int64_t> batch_examples(const BatchOrder& order, int64_t step) { return BatchSequence(order).batch(step); }

std::vector<int64_t> BatchSequence::batch(int64_t step) {
  COTUNE_CHECK(step >= 0);
  const int64_t per_epoch = steps_per_epoch(order_);
  if (step / per_epoch != epoch_) {
    epoch_ = step / per_epoch;
    examples_ = epoch_order(order_, epoch_);
  }
  return cut(order_, examples_, step % per_epoch);
}

}  // namespace cotune
