#include "schedule/pipeline/template_makespan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "schedule/pipeline/default_order.h"
#include "schedule/pipeline/structured_template.h"
#include "schedule/random_batches.h"

namespace cotune {
namespace {

struct TemplateCase {
  PipelineWork work;
  PipelineCluster cluster;
  std::vector<BucketTimes> buckets;
  int64_t microbatches = 1, rounds = 1;
  std::vector<int64_t> limit;
};

/// Unlike stages and directions, adapters in the upper stages only, links, optimizer steps, and room for few microbatches.
TemplateCase random_case(Dice& dice) {
  TemplateCase result{.microbatches = dice.between(1, 5), .rounds = dice.between(1, 3)};
  const auto stages = static_cast<int32_t>(dice.between(1, 6));
  // Odd numbers, so that moments are equal where they must be, and rarely otherwise.
  const auto seconds = [&] { return static_cast<double>(dice.between(1, 1'000'000)) * 1e-5; };
  if (dice.between(0, 1) == 0) result.cluster.link = {.latency_s = seconds() / 20, .bytes_per_s = 1e4};
  if (dice.between(0, 3) == 0) result.cluster.overlap = false;
  result.work.rank_count = stages;
  result.work.stage_rank = one_stage_per_rank(stages);
  const int64_t buckets = dice.between(1, 5);
  const bool are_alike = dice.between(0, 3) == 0;
  const StageCost like{seconds(), seconds(), 100};
  std::vector<PipelineMicrobatch> round;
  result.limit.assign(static_cast<size_t>(stages), 0);
  for (int32_t b = 0; b < buckets; ++b) {
    const auto lowest = static_cast<int32_t>(std::max<int64_t>(0, dice.between(-2 * stages, stages - 1)));
    PipelineMicrobatch microbatch{.hybrid_task = b, .jobs = {{b, 0}}, .message_bytes = {dice.between(0, 9), dice.between(0, 9)}};
    for (int32_t s = 0; s < stages; ++s) {
      microbatch.cost.push_back(are_alike ? like : StageCost{seconds(), seconds(), dice.between(50, 200)});
      int64_t& limit = result.limit[static_cast<size_t>(s)];
      limit = std::max(limit, microbatch.cost.back().kept_bytes);
    }
    result.work.jobs.push_back({.job = b, .lowest_stage = lowest, .optimizer_s = seconds()});
    result.buckets.push_back(
        bucket_times(microbatch.cost, microbatch.message_bytes, lowest, result.work.jobs.back().optimizer_s, result.cluster));
    round.push_back(microbatch);
  }
  for (int64_t r = 0; r < result.rounds; ++r) {
    for (PipelineMicrobatch& microbatch : round) {
      microbatch.round = r;
      microbatch.jobs[0].step = r;
      result.work.microbatches.insert(result.work.microbatches.end(), static_cast<size_t>(result.microbatches), microbatch);
    }
  }
  for (int64_t& limit : result.limit) limit = limit * dice.between(2, 8) / 2;
  if (dice.between(0, 1) == 0) result.limit.clear();
  return result;
}

TEST(TemplateSimulator, IsTheTemplateOfTheGeneralSimulator) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Dice dice(seed);
    const TemplateCase each = random_case(dice);
    const ComputeOrder order = structured_template(each.work, each.cluster, {.kept_bytes = each.limit});
    const double expected = makespan_s(*ComputeGraph(each.work, each.cluster).times(order));
    std::vector<const BucketTimes*> launch;
    for (const BucketTimes& bucket : each.buckets) launch.push_back(&bucket);
    std::stable_sort(launch.begin(), launch.end(),
                     [](const BucketTimes* a, const BucketTimes* b) { return a->latency_s() > b->latency_s(); });
    TemplateSimulator simulator(each.work.rank_count, each.microbatches, each.rounds);
    for (int i = 0; i < 2; ++i) {  // its buffers are clean
      EXPECT_NEAR(simulator.makespan_s(launch, each.limit), expected, 1e-9 * expected) << seed;
      EXPECT_EQ(simulator.peak_kept_bytes(), peak_kept_bytes(each.work, order)) << seed;
    }
  }
}

TEST(TemplateSimulator, NeverEndsWhereAMicrobatchDoesNotFit) {
  const StageCost cost{1, 1, 100};
  const BucketTimes bucket = bucket_times(std::span(&cost, 1), {}, 0, 0, {});
  const BucketTimes* launch = &bucket;
  const std::vector<int64_t> limit = {99};
  TemplateSimulator simulator(1, 2);
  EXPECT_EQ(simulator.makespan_s(std::span(&launch, 1), limit), std::numeric_limits<double>::infinity());
  EXPECT_EQ(simulator.makespan_s(std::span(&launch, 1)), 4);
}

}  // namespace
}  // namespace cotune
