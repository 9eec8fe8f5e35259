#include "plan/deployment/dispatch_bound.h"

#include <algorithm>
#include <array>
#include <limits>

namespace cotune {

CoverBound::CoverBound(std::span<const int64_t> sequences)
    : sequences_(sequences.begin(), sequences.end()), costs_(sequences.size(), 0), buckets_(sequences.size()) {
  size_t size = 0;
  for (size_t j = 0; j < sequences_.size(); ++j) {
    buckets_[j].first = size;
    size += static_cast<size_t>(sequences_[j]) + 1;
  }
  table_.resize(size);
  choice_.resize(size);
}

bool CoverBound::deploy(std::span<const BucketCosts> costs, std::span<const int64_t> replicas) {
  deployed_.clear();
  size_t reach = 0;
  for (size_t i = 0; i < costs.size(); ++i) {
    if (replicas[i] == 0) continue;
    deployed_.push_back({&costs[i], replicas[i]});
    reach = std::max(reach, costs[i].reach());
  }
  loads_.assign(deployed_.size(), 0);
  for (size_t j = reach; j < sequences_.size(); ++j) {
    if (sequences_[j] > 0) return false;
  }
  return !deployed_.empty();
}

double CoverBound::evaluate(std::span<const double> weights) {
  std::fill(loads_.begin(), loads_.end(), 0);
  double total = 0;
  for (size_t j = 0; j < sequences_.size(); ++j) {
    if (sequences_[j] == 0) continue;
    costs_[j] = cover_bucket(j, weights);
    total += costs_[j];
    walk(j, [&](size_t i, int64_t times) { loads_[i] += static_cast<double>(times) * deployed_[i].costs->seconds[j]; });
  }
  return least_makespan(weights, total);
}

/// The least τ with Σ_i w_i·max(0, τ − fill_i) ≥ cost: grows with τ, with a kink at every fill.
double CoverBound::least_makespan(std::span<const double> weights, double cost) const {
  if (cost <= 0) return 0;
  double weight_sum = 0, weighted_fill = 0, makespan = 0;
  for (size_t i = 0; i < deployed_.size(); ++i) weight_sum += weights[i], weighted_fill += weights[i] * deployed_[i].costs->fill;
  makespan = (cost + weighted_fill) / weight_sum;
  // Configurations that would not even be filled by then contribute nothing; leaving them out lowers τ, so once is not
  // always enough, and as often as there are configurations is.
  for (size_t round = 0; round < deployed_.size(); ++round) {
    double sum = 0, filled = 0;
    for (size_t i = 0; i < deployed_.size(); ++i) {
      if (deployed_[i].costs->fill >= makespan) continue;
      sum += weights[i];
      filled += weights[i] * deployed_[i].costs->fill;
    }
    if (sum == weight_sum || sum <= 0) break;
    weight_sum = sum;
    makespan = (cost + filled) / sum;
  }
  return makespan;
}

double CoverBound::cover_bucket(size_t bucket, std::span<const double> weights) {
  struct Item {
    size_t size;
    double price;
    uint8_t configuration;
  };
  std::array<Item, 32> items;
  size_t count = 0, bulk = 0;
  double best_ratio = std::numeric_limits<double>::infinity();
  int64_t largest = 1;
  for (size_t i = 0; i < deployed_.size(); ++i) {
    if (bucket >= deployed_[i].costs->reach()) continue;
    const double price = weights[i] * deployed_[i].costs->seconds[bucket];
    const double ratio = price / static_cast<double>(deployed_[i].replicas);
    if (ratio < best_ratio) best_ratio = ratio, bulk = i;
    largest = std::max(largest, deployed_[i].replicas);
    items[count++] = {static_cast<size_t>(deployed_[i].replicas), price, static_cast<uint8_t>(i)};
  }
  // Of as many other items as the bulk's size some add up to a multiple of that size, which bulk covers no dearer: fewer
  // than that many others are needed, so all beyond what they can cover is bulk.
  BucketCover& cover = buckets_[bucket];
  const int64_t bulk_size = deployed_[bulk].replicas, mixed = (bulk_size - 1) * largest + bulk_size;
  cover.bulk = bulk;
  cover.rest = sequences_[bucket];
  cover.bulk_times = 0;
  if (cover.rest > mixed) {
    cover.bulk_times = (cover.rest - mixed + bulk_size - 1) / bulk_size;
    cover.rest -= cover.bulk_times * bulk_size;
  }
  double* table = table_.data() + cover.first;
  uint8_t* choice = choice_.data() + cover.first;
  const auto rest = static_cast<size_t>(cover.rest);
  table[0] = 0;
  for (size_t x = 1; x <= rest; ++x) {
    double least = std::numeric_limits<double>::infinity();
    uint8_t chosen = 0;
    for (size_t k = 0; k < count; ++k) {
      const double price = table[x > items[k].size ? x - items[k].size : 0] + items[k].price;
      if (price < least) least = price, chosen = items[k].configuration;
    }
    table[x] = least;
    choice[x] = chosen;
  }
  return table[rest] + static_cast<double>(cover.bulk_times) * weights[bulk] * deployed_[bulk].costs->seconds[bucket];
}

template <typename Take>
void CoverBound::walk(size_t bucket, const Take& take) const {
  const BucketCover& cover = buckets_[bucket];
  if (cover.bulk_times > 0) take(cover.bulk, cover.bulk_times);
  for (int64_t rest = cover.rest; rest > 0;) {
    const size_t i = choice_[cover.first + static_cast<size_t>(rest)];
    take(i, 1);
    rest -= deployed_[i].replicas;
  }
}

std::vector<Cover> CoverBound::covers() const {
  std::vector<Cover> covers(sequences_.size(), Cover(deployed_.size(), 0));
  for (size_t j = 0; j < sequences_.size(); ++j) {
    if (sequences_[j] > 0) walk(j, [&](size_t i, int64_t times) { covers[j][i] += times; });
  }
  return covers;
}

BestWeights improve_weights(CoverBound& bound, int rounds, double target, const std::function<double()>& visit) {
  const std::vector<DeployedCosts>& deployed = bound.deployed();
  std::vector<double> weights;
  double sum = 0;
  for (const DeployedCosts& each : deployed) {
    weights.push_back(static_cast<double>(each.costs->devices * each.replicas));
    sum += weights.back();
  }
  for (double& weight : weights) weight /= sum;
  const std::vector<double> scales = weights;
  BestWeights best{weights, 0};
  double eagerness = 1;
  int since_better = 0;
  for (int round = 0; round < rounds; ++round) {
    const double value = bound.evaluate(weights);
    if (visit) target = visit();
    if (value > best.bound) {
      best = {weights, value};
      since_better = 0;
    } else if (++since_better == 5) {
      eagerness *= 0.5;
      since_better = 0;
    }
    if (best.bound <= 0 || best.bound >= target || deployed.size() == 1 || round + 1 == rounds) break;
    if (value < 0.5 * best.bound) {  // too far: halfway back to the best
      for (size_t i = 0; i < deployed.size(); ++i) weights[i] = 0.5 * (weights[i] + best.weights[i]);
      continue;
    }
    const std::vector<double>& loads = bound.loads();
    double square = 0;
    for (size_t i = 0; i < deployed.size(); ++i) {
      const double slope = scales[i] * (loads[i] + deployed[i].costs->fill - value);
      square += slope * slope;
    }
    if (square <= 0) break;
    const double step = eagerness * (target - value) / square;
    double total = 0;
    for (size_t i = 0; i < deployed.size(); ++i) {
      const double slope = loads[i] + deployed[i].costs->fill - value;
      weights[i] = std::max(0.0, weights[i] + step * scales[i] * scales[i] * slope);
      total += weights[i];
    }
    if (total <= 0) break;
    for (double& weight : weights) weight /= total;
  }
  return best;
}

}  // namespace cotune
