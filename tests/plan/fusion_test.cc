#include "plan/fusion/fusion.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/never.h"
#include "plan/cost/pipeline_seconds.h"
#include "plan/fusion/job_runs.h"
#include "plan/random_fusion.h"

namespace cotune {
namespace {

/// max(knee, tokens) seconds on every stage, forward like backward.
FusionProblem sharp_knee(const std::vector<int64_t>& tokens, double knee, size_t stages, int64_t microbatches) {
  FusionProblem problem{.tokens = tokens, .microbatches = microbatches};
  problem.cost = [=](std::span<const int32_t> jobs) {
    double count = 0;
    for (const int32_t job : jobs) count += static_cast<double>(tokens[static_cast<size_t>(job)]);
    const double seconds = std::max(knee, count);
    return FusedCost{.stages = std::vector<StageCost>(stages, {seconds, seconds, static_cast<int64_t>(count)})};
  };
  return problem;
}

void expect_partition(const HybridTasks& tasks, size_t jobs) {
  std::vector<int32_t> all;
  for (const std::vector<int32_t>& task : tasks) {
    EXPECT_FALSE(task.empty());
    EXPECT_TRUE(std::is_sorted(task.begin(), task.end()));
    all.insert(all.end(), task.begin(), task.end());
  }
  std::sort(all.begin(), all.end());
  std::vector<int32_t> expected(jobs);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(all, expected);
}

struct Distance {
  double sum = 0, worst = 0;
  int count = 0;
  void add(double ratio) {
    sum += ratio - 1;
    worst = std::max(worst, ratio - 1);
    ++count;
  }
  double mean() const { return sum / count; }
};

TEST(FuseJobs, IsNearTheBestOfAllContiguousSplitsOfEightJobs) {
  Distance ours, paper;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const FusionProblem problem = random_fusion(seed, {.jobs = 8});
    const double best = best_of_all_splits(problem);
    const Fusion fusion = fuse_jobs(problem);
    EXPECT_GE(fusion.time.seconds, best * (1 - 1e-9)) << seed;
    EXPECT_LE(fusion.lower_bound, best * (1 + 1e-9)) << seed;
    ours.add(fusion.time.seconds / best);
    paper.add(fuse_jobs(problem, FusionRule::paper).time.seconds / best);
  }
  EXPECT_LT(ours.mean(), 0.001);
  EXPECT_LT(ours.worst, 0.02);
  EXPECT_GT(paper.mean(), 0.05);  // what MX-13 found of the formula as it is written
}

TEST(FuseJobs, IsNearTheBestOfAllContiguousSplitsOfSixteenJobs) {
  Distance ours;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const FusionProblem problem = random_fusion(1000 + seed, {.jobs = 16});
    ours.add(fuse_jobs(problem).time.seconds / best_of_all_splits(problem));
  }
  EXPECT_LT(ours.mean(), 0.005);
  EXPECT_LT(ours.worst, 0.05);
}

TEST(FuseJobs, OfSixtyFourJobsIsNearALowerBound) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const FusionProblem problem = random_fusion(2000 + seed, {.jobs = 64});
    const Fusion fusion = fuse_jobs(problem);
    expect_partition(fusion.tasks, 64);
    EXPECT_LE(fusion.time.seconds, 1.25 * fusion.lower_bound) << seed;
    EXPECT_GE(fusion.time.seconds, fusion.lower_bound * (1 - 1e-9)) << seed;
  }
}

TEST(FuseJobs, ByThePapersRuleHaveTheLeastOfEq6OverAllSplits) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const FusionProblem problem =
        random_fusion(3000 + seed, {.jobs = 1 + static_cast<int64_t>(seed % 12), .with_memory = seed % 5 == 0});
    const JobRuns runs(problem);
    double least = never;
    std::vector<const JobRun*> split;
    for_all_splits(runs, split, 0, [&](const std::vector<const JobRun*>& each) {
      double seconds = 0;
      for (size_t i = 0; i < each.size(); ++i) {
        std::vector<double> latencies;
        double mean = 0;
        for (size_t s = 0; s < each[i]->times.stages.size(); ++s) {
          const BucketStage& stage = each[i]->times.stages[s];
          const auto copies = static_cast<int64_t>(each[i]->times.stages.size());
          if (!problem.memory_bytes.empty() &&
              each[i]->workspace_bytes[s] + copies * stage.kept_bytes > problem.memory_bytes[s]) {
            return;
          }
          latencies.push_back((stage.forward_s + stage.backward_s) / 2);
          mean += latencies.back() / static_cast<double>(each[i]->times.stages.size());
        }
        const auto count = static_cast<double>(problem.microbatches);
        seconds += i == 0 ? pipeline_seconds(latencies, problem.microbatches) : 2 * count * mean;
      }
      least = std::min(least, seconds);
    });
    const Fusion fusion = fuse_jobs(problem, FusionRule::paper);
    if (least == never) {
      EXPECT_TRUE(fusion.tasks.empty()) << seed;
      EXPECT_FALSE(fusion.time.constraint.empty()) << seed;
    } else {
      EXPECT_NEAR(fusion.objective, least, 1e-9 * least) << seed;
      expect_partition(fusion.tasks, problem.tokens.size());
    }
  }
}

TEST(FuseJobs, BelowTheKneeAreOneHybridTaskAndAboveItSeveral) {
  for (const FusionRule rule : {FusionRule::simulated, FusionRule::paper}) {
    EXPECT_EQ(fuse_jobs(sharp_knee(std::vector<int64_t>(8, 128), 1024, 4, 4), rule).tasks.size(), 1u);
    EXPECT_GT(fuse_jobs(sharp_knee(std::vector<int64_t>(8, 1024), 1024, 4, 4), rule).tasks.size(), 1u);
  }
}

TEST(FuseJobs, GainsBelowTheKneeAndNothingBeyondIt) {
  const auto gain = [](int64_t tokens) {  // of two jobs fused over the two apart, where there is nothing to fill
    const FusionProblem problem = sharp_knee({tokens, tokens}, 1024, 1, 4);
    return fusion_time(problem, {{0}, {1}}).seconds / fusion_time(problem, {{0, 1}}).seconds;
  };
  EXPECT_DOUBLE_EQ(gain(256), 2);
  EXPECT_DOUBLE_EQ(gain(512), 2);
  EXPECT_NEAR(gain(768), 4.0 / 3, 1e-12);
  EXPECT_DOUBLE_EQ(gain(1024), 1);
  EXPECT_DOUBLE_EQ(gain(4096), 1);
}

TEST(FuseJobs, AreEqualForEqualProblemsAndTheirValueDoesNotDependOnTheOrderOfJobs) {
  for (uint64_t seed = 0; seed < 600; ++seed) {
    const auto jobs = static_cast<int64_t>(1 + seed % 12);
    FusionProblem problem = random_fusion(5000 + seed, {.jobs = jobs, .with_memory = seed % 4 == 0});
    const Fusion first = fuse_jobs(problem), again = fuse_jobs(problem);
    EXPECT_EQ(first.tasks, again.tasks) << seed;
    EXPECT_EQ(first.time.seconds, again.time.seconds) << seed;

    const std::vector<int64_t> order = permutation(seed, jobs);
    FusionProblem permuted = problem;
    for (size_t i = 0; i < order.size(); ++i) permuted.tokens[i] = problem.tokens[static_cast<size_t>(order[i])];
    permuted.cost = [&](std::span<const int32_t> set) {
      std::vector<int32_t> own;
      for (const int32_t job : set) own.push_back(static_cast<int32_t>(order[static_cast<size_t>(job)]));
      std::sort(own.begin(), own.end());  // sums of doubles are not to differ
      return problem.cost(own);
    };
    problem.cost = [cost = problem.cost](std::span<const int32_t> set) {
      std::vector<int32_t> own(set.begin(), set.end());
      std::sort(own.begin(), own.end());
      return cost(own);
    };
    for (const FusionRule rule : {FusionRule::simulated, FusionRule::paper}) {
      const double expected = fuse_jobs(problem, rule).time.seconds;
      const double found = fuse_jobs(permuted, rule).time.seconds;
      if (expected == never) {
        EXPECT_EQ(found, never) << seed;
      } else {
        EXPECT_NEAR(found, expected, 1e-9 * expected) << seed;
      }
    }
  }
}

TEST(FuseJobs, NeverExceedMemoryAndFindASplitWhereThereIsOne) {
  int refused = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const FusionProblem problem =
        random_fusion(9000 + seed, {.jobs = 1 + static_cast<int64_t>(seed % 8), .with_memory = true});
    const Fusion fusion = fuse_jobs(problem);
    if (fusion.tasks.empty()) {
      ++refused;
      EXPECT_EQ(best_of_all_splits(problem), never) << seed;
      EXPECT_NE(fusion.time.constraint.find("stage"), std::string::npos) << fusion.time.constraint;
      continue;
    }
    EXPECT_TRUE(fusion.time.constraint.empty());
    for (size_t s = 0; s < problem.memory_bytes.size(); ++s) {
      int64_t kept = 0, workspace = 0;
      for (const std::vector<int32_t>& task : fusion.tasks) {
        const FusedCost cost = problem.cost(task);
        kept = std::max(kept, cost.stages[s].kept_bytes);
        workspace = std::max(workspace, cost.workspace_bytes[s]);
      }
      EXPECT_LE(kept + workspace, problem.memory_bytes[s]) << seed;
    }
    EXPECT_NEAR(fusion.time.seconds, fusion_time(problem, fusion.tasks).seconds, 1e-9 * fusion.time.seconds) << seed;
  }
  EXPECT_GT(refused, 20);
  EXPECT_LT(refused, 1500);
}

TEST(FuseJobs, WithLittleMemoryIsNearTheBestOfAllContiguousSplits) {
  Distance ours;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const FusionProblem problem = random_fusion(20000 + seed, {.jobs = 8, .with_memory = true});
    const Fusion fusion = fuse_jobs(problem);
    if (!fusion.tasks.empty()) ours.add(fusion.time.seconds / best_of_all_splits(problem));
  }
  EXPECT_GT(ours.count, 200);
  EXPECT_LT(ours.mean(), 0.005);
  EXPECT_LT(ours.worst, 0.05);
}

TEST(FuseJobs, OnOneStageTakeTheLeastWorkThatFits) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    FusionProblem problem = random_fusion(30000 + seed, {.jobs = 1 + static_cast<int64_t>(seed % 9), .with_memory = seed % 2 == 0});
    problem.cost = [cost = problem.cost](std::span<const int32_t> jobs) {
      FusedCost one = cost(jobs);
      one.stages.resize(1);
      one.workspace_bytes.resize(1);
      return one;
    };
    if (!problem.memory_bytes.empty()) problem.memory_bytes.resize(1);
    const Fusion fusion = fuse_jobs(problem);
    const double best = best_of_all_splits(problem);
    if (best == never) {
      EXPECT_TRUE(fusion.tasks.empty()) << seed;
    } else {
      EXPECT_NEAR(fusion.time.seconds, best, 1e-9 * best) << seed;
      EXPECT_NEAR(fusion.lower_bound, best, 1e-9 * best) << seed;
    }
    // Where every launch costs and nothing else does, one microbatch for all is the fewest launches.
    if (problem.memory_bytes.empty()) {
      EXPECT_EQ(fuse_jobs(sharp_knee(problem.tokens, 1e9, 1, 4)).tasks.size(), 1u);
    }
  }
}

TEST(FuseJobs, OfSeveralRoundsWithoutAFlushAreNearTheBest) {
  Distance ours;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    FusionProblem problem = random_fusion(40000 + seed, {.jobs = 7});
    problem.rounds = 3;
    const Fusion fusion = fuse_jobs(problem);
    EXPECT_GE(fusion.time.seconds, fusion.lower_bound * (1 - 1e-9)) << seed;
    ours.add(fusion.time.seconds / best_of_all_splits(problem));
  }
  EXPECT_LT(ours.mean(), 0.005);
  EXPECT_LT(ours.worst, 0.05);
}

}  // namespace
}  // namespace cotune
