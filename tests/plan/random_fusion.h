/// Random fusion problems for property tests: a smooth knee, uneven stages, adapters that cost by themselves.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "plan/fusion/fusion.h"
#include "plan/fusion/job_runs.h"

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
    FusedCost cost{.message_bytes = {2 * static_cast<int64_t>(count), static_cast<int64_t>(count)}};
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

/// Tries every contiguous split, `visit(runs)`; a run that does not fit is passed over with all that begin with it.
template <typename Visit>
void for_all_splits(const JobRuns& runs, std::vector<const JobRun*>& split, int32_t first, const Visit& visit) {
  if (first == runs.job_count()) return visit(split);
  for (int32_t end = first + 1; end <= runs.job_count(); ++end) {
    if (!runs.run(first, end).fits) continue;
    split.push_back(&runs.run(first, end));
    for_all_splits(runs, split, end, visit);
    split.pop_back();
  }
}

/// Least simulated seconds of all contiguous splits. Those that keep the last stage busy for longer than the best one's
/// time, with the way there of the first microbatch, are not simulated.
inline double best_of_all_splits(const FusionProblem& problem) {
  const JobRuns runs(problem);
  RoundSimulator simulator(problem, runs.stage_count());
  double best = std::numeric_limits<double>::infinity();
  std::vector<const JobRun*> split;
  for_all_splits(runs, split, 0, [&](const std::vector<const JobRun*>& each) {
    double busy = 0, fill = 0, drain = std::numeric_limits<double>::infinity(), longest = -1;
    for (const JobRun* run : each) {
      const BucketStage& last = run->times.stages.back();
      busy += static_cast<double>(problem.microbatches) * (last.forward_s + last.backward_s);
      if (run->latency_s > longest) fill = run->fill_s;
      longest = std::max(longest, run->latency_s);
      drain = std::min(drain, run->drain_s);
    }
    if (problem.rounds == 1 && busy + fill + drain > best) return;
    best = std::min(best, simulator.seconds(each));
  });
  return best;
}

}  // namespace cotune
