#include "plan/deployment/pattern_bound.h"

#include <algorithm>
#include <cmath>

#include "plan/deployment/covering_lp.h"

namespace cotune {
namespace {

constexpr int64_t cells = 2048;
constexpr int64_t least_size = 16;  ///< cells: what takes fewer is divisible

}  // namespace

PatternBound::PatternBound(std::span<const BucketCosts> costs, std::span<const int64_t> sequences)
    : costs_(costs), sequences_(sequences.begin(), sequences.end()) {}

double PatternBound::best_pattern(size_t configuration, double seconds, std::span<const double> prices, Pattern& pattern) {
  const BucketCosts& costs = costs_[configuration];
  pattern = {configuration, std::vector<int64_t>(sequences_.size(), 0)};
  const double cell = seconds / static_cast<double>(cells);
  // Rounding must not lose a pattern that just fits.
  const auto capacity = static_cast<int64_t>(std::floor((seconds - costs.fill) / cell * (1 + 1e-9)));
  if (capacity <= 0) return 0;
  struct Item {
    size_t bucket;
    int64_t count;  ///< sequences taken together
    int64_t size;   ///< cells
  };
  std::vector<Item> items;
  size_t filler = sequences_.size();
  double rate = 0;  ///< of the filler, per second
  for (size_t j = 0; j < std::min(costs.reach(), sequences_.size()); ++j) {
    if (sequences_[j] == 0 || prices[j] <= 0) continue;
    const auto size = static_cast<int64_t>(std::floor(costs.seconds[j] / cell));
    if (size < least_size) {
      if (prices[j] / costs.seconds[j] > rate) rate = prices[j] / costs.seconds[j], filler = j;
      continue;
    }
    // At most B_j of them: parts of 1, 2, 4, …, rest make up every number.
    int64_t left = std::min(sequences_[j], capacity / size);
    for (int64_t part = 1; left > 0; part *= 2) {
      const int64_t count = std::min(part, left);
      items.push_back({j, count, static_cast<int64_t>(std::floor(static_cast<double>(count) * costs.seconds[j] / cell))});
      left -= count;
    }
  }
  // Row k of the table: the most value of the first k items in t cells. The filler stands in all from the start. All rows are kept, so that
  // what was taken need not be written down, cell by cell, on a branch that nothing foretells.
  const auto width = static_cast<size_t>(capacity) + 1;
  table_.resize((items.size() + 1) * width);
  for (size_t t = 0; t < width; ++t) table_[t] = static_cast<double>(t) * cell * rate;
  for (size_t k = 0; k < items.size(); ++k) {
    const size_t size = std::min(static_cast<size_t>(items[k].size), width);
    const double value = static_cast<double>(items[k].count) * prices[items[k].bucket];
    const double* without = table_.data() + k * width;
    double* row = table_.data() + (k + 1) * width;
    std::copy(without, without + size, row);
    for (size_t t = size; t < width; ++t) row[t] = std::max(without[t], without[t - size] + value);
  }
  const double best = table_.back();
  auto t = static_cast<size_t>(capacity);
  for (size_t k = items.size(); k-- > 0;) {
    if (table_[(k + 1) * width + t] == table_[k * width + t]) continue;
    pattern.sequences[items[k].bucket] += items[k].count;
    t -= static_cast<size_t>(items[k].size);
  }
  if (filler < sequences_.size()) {
    // Whole ones in the pattern; its value is what the bound counts.
    pattern.sequences[filler] += static_cast<int64_t>(std::floor(static_cast<double>(t) * cell / costs.seconds[filler]));
  }
  return best;
}

DeviceBound PatternBound::least_devices(double seconds, int64_t devices, int rounds) {
  const size_t buckets = sequences_.size(), width = costs_.size();
  const auto limit = static_cast<double>(devices);
  CoveringLp lp({sequences_.begin(), sequences_.end()}, 100 * limit);
  std::vector<size_t> configurations;  // of the program's columns
  DeviceBound result;
  for (int round = 0; round < rounds; ++round) {
    lp.solve();
    std::vector<double> prices = lp.duals();
    CountCut cut{std::vector<double>(width, 0), 0};
    for (size_t j = 0; j < buckets; ++j) {
      prices[j] = std::max(0.0, prices[j]);
      cut.demand += static_cast<double>(sequences_[j]) * prices[j];
    }
    bool has_new = false;
    double most_per_device = 0;
    for (size_t i = 0; i < width; ++i) {
      Pattern pattern;
      const auto size = static_cast<double>(costs_[i].devices);
      cut.worth[i] = static_cast<double>(costs_[i].copies) * best_pattern(i, seconds, prices, pattern);
      for (int64_t& count : pattern.sequences) count *= costs_[i].copies;
      most_per_device = std::max(most_per_device, cut.worth[i] / size);
      if (cut.worth[i] <= size * (1 + 1e-7)) continue;
      lp.add_column(size, {pattern.sequences.begin(), pattern.sequences.end()});
      configurations.push_back(i);
      has_new = true;
    }
    if (most_per_device > 0) result.devices = std::max(result.devices, cut.demand / most_per_device);
    result.cuts.push_back(std::move(cut));
    if (result.devices > limit * (1 + 1e-9) || !has_new || lp.cost() <= result.devices * (1 + 1e-4)) break;
  }
  const std::vector<double> values = lp.values();
  result.replicas.assign(width, 0);
  for (size_t k = 0; k < values.size(); ++k) result.replicas[configurations[k]] += values[k];
  return result;
}

}  // namespace cotune
