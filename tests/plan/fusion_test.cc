#include "plan/fusion.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "plan/job_runs.h"
#include "plan/pipeline_seconds.h"
#include "plan/random_fusion.h"

namespace cotune {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

/// Least simulated seconds of all contiguous splits.
double best_of_all_splits(const FusionProblem& problem) {
  const JobRuns runs(problem);
  RoundSimulator simulator(problem, runs.stage_count());
  const auto jobs = static_cast<size_t>(runs.job_count());
  double best = never;
  for (uint64_t mask = 0; mask < uint64_t{1} << (jobs - 1); ++mask) {
    std::vector<const JobRun*> split;
    int32_t first = 0;
    for (size_t i = 0; i < jobs; ++i) {
      if (i + 1 < jobs && (mask >> i & 1) == 0) continue;
      split.push_back(&runs.run(first, static_cast<int32_t>(i) + 1));
      first = static_cast<int32_t>(i) + 1;
    }
    best = std::min(best, simulator.seconds(split));
  }
  return best;
}

TEST(FuseJobs, IsNearTheBestOfAllContiguousSplits) {
  double sum = 0, worst = 1, paper_sum = 0, paper_worst = 1;
  constexpr int cases = 300;
  for (uint64_t seed = 0; seed < cases; ++seed) {
    const FusionProblem problem = random_fusion(seed, {.jobs = 8});
    const double best = best_of_all_splits(problem);
    const Fusion fusion = fuse_jobs(problem);
    const double ratio = fusion.time.seconds / best;
    EXPECT_GE(ratio, 1 - 1e-9) << seed;
    EXPECT_LE(fusion.lower_bound, best * (1 + 1e-9)) << seed;
    sum += ratio;
    worst = std::max(worst, ratio);
    const double paper = fuse_jobs(problem, FusionRule::paper).time.seconds / best;
    paper_sum += paper;
    paper_worst = std::max(paper_worst, paper);
  }
  EXPECT_LT(sum / cases, 1.005);
  EXPECT_LT(worst, 1.05);

}

}  // namespace
}  // namespace cotune
