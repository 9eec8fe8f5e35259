#include "plan/hybrid_tasks.h"

#include <gtest/gtest.h>

#include <numeric>

#include "plan/random_fusion.h"
#include "plan/replica_jobs.h"
#include "schedule/pipeline/pipeline_schedule.h"
#include "schedule/pipeline/simulate.h"
#include "schedule/pipeline/verify_pipeline.h"

namespace cotune {
namespace {

TEST(ChooseHybridTasks, PlansAreProvenAndKeepMemoryOverRandomProblems) {
  int fitting = 0, refused = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const FusionProblem problem =
        random_fusion(seed, {.jobs = 1 + static_cast<int64_t>(seed % 7), .with_memory = seed % 2 == 0});
    const ChosenHybridTasks choice = choose_hybrid_tasks(std::span(&problem, 1));
    if (!choice.chosen.fits()) {
      ++refused;
      ASSERT_FALSE(choice.rejected.empty());
      for (const HybridTaskChoice& each : choice.rejected) EXPECT_FALSE(each.rejected_for.empty()) << seed << each.name;
      continue;
    }
    ++fitting;
    std::vector<int32_t> jobs;
    for (const auto& task : choice.chosen.tasks) jobs.insert(jobs.end(), task.begin(), task.end());
    std::sort(jobs.begin(), jobs.end());
    ASSERT_EQ(jobs.size(), problem.tokens.size()) << seed;
    for (size_t i = 0; i < jobs.size(); ++i) EXPECT_EQ(jobs[i], static_cast<int32_t>(i)) << seed;
    const PipelineFacts facts = verify(choice.work, make_schedule(choice.work, choice.compute_order, problem.cluster));
    EXPECT_EQ(facts.peak_kept_bytes, choice.chosen.activation_bytes) << seed;
    for (size_t s = 0; s < problem.memory_bytes.size(); ++s) {
      EXPECT_LE(choice.chosen.activation_bytes[s] + choice.chosen.workspace_bytes[s], problem.memory_bytes[s]) << seed;
    }
    for (const HybridTaskChoice& each : choice.rejected) {
      EXPECT_GE(each.seconds, choice.chosen.seconds * (1 - 1e-9)) << seed << each.name;
      EXPECT_FALSE(each.rejected_for.empty()) << seed << each.name;
    }
  }
  EXPECT_GT(fitting, 100);
  EXPECT_GT(refused, 4);
}

}  // namespace
}  // namespace cotune
