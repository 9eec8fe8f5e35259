/// Random fusion problems for property tests: a smooth knee, uneven stages, adapters that cost by themselves.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "plan/fusion.h"

namespace cotune {

struct FusionCase {
  int64_t jobs = 8;
  bool with_memory = false;   ///< now and then so little that splits do not fit
  bool with_unlike_stages = true;
};

inline FusionProblem random_fusion(uint64_t seed, const FusionCase& size) {
  uint64_t next = 0;
  const auto below = [&](uint64_t bound) { return uniform_below(seed, next++, bound); };
  const auto real = [&] { return uniform(seed, next++); };
  FusionProblem problem;
  const size_t stages = size_t{1} << (1 + below(3));
  problem.microbatches = int64_t{1} << (1 + below(3));
  const double knee = 256 * std::pow(16.0, real());
  const double sharpness = 1 + 3 * real();
  const double ratio = 1 + 0.5 * real() * static_cast<double>(below(2));
  std::vector<double> speed(stages, 1), adapter;
  if (size.with_unlike_stages && below(2) == 0) {
    for (double& each : speed) each = 0.9 + 0.2 * real();
    speed.back() *= 1 + 0.3 * real();
  }
  if (below(3) == 0) problem.cluster.link = {.latency_s = knee * 0.02 * real(), .bytes_per_s = 20};
  for (int64_t job = 0; job < size.jobs; ++job) {
    problem.tokens.push_back(static_cast<int64_t>(16 * std::pow(128.0, real())));
    adapter.push_back(knee * 0.1 * real());
  }
  problem.cost = [=, tokens = problem.tokens](std::span<const int32_t> jobs) {
    double count = 0, slowest = 0, sum = 0;
    for (const int32_t job : jobs) {
      const auto j = static_cast<size_t>(job);
      count += static_cast<double>(tokens[j]);
      slowest = std::max(slowest, adapter[j]);
      sum += 0.2 * adapter[j];
    }
    const double base = std::pow(std::pow(knee, sharpness) + std::pow(count, sharpness), 1 / sharpness);
    FusedCost cost{.message_bytes = static_cast<int64_t>(count)};
    for (const double factor : speed) {
      const double seconds = factor * (base + std::max(slowest, sum));
      cost.stages.push_back({seconds, ratio * seconds, static_cast<int64_t>(100 * count)});
      cost.workspace_bytes.push_back(static_cast<int64_t>(50 * count));
    }
    return cost;
  };
  if (size.with_memory) {
    const auto longest = static_cast<double>(*std::max_element(problem.tokens.begin(), problem.tokens.end()));
    const auto bytes = static_cast<int64_t>(longest * (140 + 600 * real() * real()));
    problem.memory_bytes.assign(stages, bytes);
  }
  return problem;
}

/// The split whose borders are the bits of `mask`, over the jobs in `order`.
inline HybridTasks split_of(const std::vector<int32_t>& order, uint64_t mask) {
  HybridTasks tasks(1);
  for (size_t i = 0; i < order.size(); ++i) {
    tasks.back().push_back(order[i]);
    if (i + 1 < order.size() && (mask >> i & 1) != 0) tasks.emplace_back();
  }
  for (std::vector<int32_t>& task : tasks) std::sort(task.begin(), task.end());
  return tasks;
}

/// Job indices by ascending tokens: what fusion cuts, where no two jobs have equally many.
inline std::vector<int32_t> by_tokens(const FusionProblem& problem) {
  std::vector<int32_t> order(problem.tokens.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return problem.tokens[static_cast<size_t>(a)] < problem.tokens[static_cast<size_t>(b)];
  });
  return order;
}

}  // namespace cotune
