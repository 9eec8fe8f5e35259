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

/// The examples of share `share`, which begin at `first`, that an epoch takes, in their order.
std::vector<int64_t> taken_of_share(const BatchOrder& order, size_t share, int64_t first, int64_t size, int64_t epoch) {
  const int64_t count = order.shares[share].example_count;
  std::vector<int64_t> taken, pass_order;
  int64_t pass = -1;
  for (int64_t at = epoch * size; at < (epoch + 1) * size; ++at) {
    if (at / count != pass) {
      pass = at / count;
      const uint64_t key = mix_key(mix_key(order.seed, key_of("share order")), static_cast<uint64_t>(share));
      if (order.shuffle == Shuffle::epoch) pass_order = permutation(mix_key(key, static_cast<uint64_t>(pass)), count);
    }
    taken.push_back(first + (order.shuffle == Shuffle::epoch ? pass_order[static_cast<size_t>(at % count)] : at % count));
  }
  return taken;
}

/// Which share each place of an epoch is for: shuffled, or each share spread evenly.
std::vector<size_t> shares_of_places(const BatchOrder& order, const std::vector<int64_t>& sizes, int64_t epoch) {
  struct Place {
    double position;
    size_t share;
  };
  std::vector<Place> places;
  for (size_t share = 0; share < sizes.size(); ++share) {
    for (int64_t i = 0; i < sizes[share]; ++i) {
      places.push_back({(static_cast<double>(i) + 0.5) / static_cast<double>(sizes[share]), share});
    }
  }
  std::vector<size_t> shares;
  if (order.shuffle == Shuffle::epoch) {
    const uint64_t key = mix_key(mix_key(order.seed, key_of("epoch order")), static_cast<uint64_t>(epoch));
    for (const int64_t place : permutation(key, std::ssize(places))) shares.push_back(places[static_cast<size_t>(place)].share);
    return shares;
  }
  std::stable_sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.position < b.position; });
  for (const Place& place : places) shares.push_back(place.share);
  return shares;
}

std::vector<int64_t> order_by_shares(const BatchOrder& order, int64_t epoch) {
  const std::vector<int64_t> sizes = share_sizes(order);
  std::vector<std::vector<int64_t>> taken(sizes.size());
  int64_t first = 0;
  for (size_t share = 0; share < sizes.size(); ++share) {
    if (sizes[share] > 0) taken[share] = taken_of_share(order, share, first, sizes[share], epoch);
    first += order.shares[share].example_count;
  }
  std::vector<int64_t> examples;
  std::vector<size_t> next(sizes.size(), 0);
  for (const size_t share : shares_of_places(order, sizes, epoch)) examples.push_back(taken[share][next[share]++]);
  COTUNE_CHECK(first == order.example_count && std::ssize(examples) == order.example_count);
  return examples;
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

std::vector<int64_t> share_sizes(const BatchOrder& order) {
  double weights = 0;
  for (const ExampleShare& share : order.shares) weights += share.weight;
  std::vector<int64_t> sizes;
  std::vector<double> exact;
  int64_t left = order.example_count;
  for (const ExampleShare& share : order.shares) {
    exact.push_back(static_cast<double>(order.example_count) * share.weight / weights);
    sizes.push_back(share.weight > 0 ? std::max<int64_t>(1, static_cast<int64_t>(exact.back())) : 0);
    left -= sizes.back();
  }
  for (; left != 0; left -= left > 0 ? 1 : -1) {
    size_t chosen = 0;
    const auto lacks = [&](size_t i) { return exact[i] - static_cast<double>(sizes[i]); };
    for (size_t i = 1; i < sizes.size(); ++i) {
      if (left > 0 ? lacks(i) > lacks(chosen) : sizes[i] > sizes[chosen]) chosen = i;
    }
    sizes[chosen] += left > 0 ? 1 : -1;
  }
  return sizes;
}

std::vector<int64_t> epoch_order(const BatchOrder& order, int64_t epoch) {
  COTUNE_CHECK(epoch >= 0);
  if (!order.shares.empty()) return order_by_shares(order, epoch);
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
