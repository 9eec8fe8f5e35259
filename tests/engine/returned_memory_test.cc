// What ranks hold of a job, shards, gradients and moments, is given back when they forget it (mLoRA §3.2.1, ML-6).
#include <gtest/gtest.h>

#include "engine/process_ranks.h"
#include "engine/rank_rounds.h"
#include "engine/rank_threads.h"
#include "ops/memory.h"

namespace cotune {
namespace {

using namespace testing;

int64_t bytes_of_jobs() {
  const MemoryUsage usage = memory_usage();
  return usage[MemoryKind::adapters] + usage[MemoryKind::gradients] + usage[MemoryKind::optimizer];
}

std::vector<RandomJob> two_kinds_of_jobs() {
  std::vector<RandomJob> jobs{lora_job("lora", 1, 8, 0, {"all-linear"}, {12, 9}), bottleneck_job("bottleneck", 2, 8, Activation::relu, {11})};
  for (RandomJob& job : jobs) job.steps = 2;
  return jobs;
}

/// As jobs of threads end.
LifeEvents shared_until_the_end(RankThreads& ranks) {
  LifeEvents events = shared_with(ranks);
  events.ends = [&ranks](JobLife& life, int32_t job) {
    ranks.gather(job, life.adapter());
    ranks.forget(job);
  };
  return events;
}

/// Jobs come, train and go, twice over; the bytes beside them stay. events: of the group; they end with RankGroup::forget.
void expect_bytes_to_come_back(const Backbone& backbone, const PipelineLayout& layout, RankGroup& ranks, LifeEvents events) {
  const std::vector<RandomJob> jobs = two_kinds_of_jobs();
  const int64_t before = bytes_of_jobs();
  for (int time = 0; time < 2; ++time) {
    int64_t most = 0;
    train(jobs, backbone, small_microbatches(), [&](Round& round) {
      ranks.run(plan_round(round.plan, layout), round.rounds);
      most = std::max(most, bytes_of_jobs());
    }, events);
    EXPECT_GT(most, before);
    EXPECT_EQ(bytes_of_jobs(), before) << "time " << time;
  }
}

TEST(ReturnedMemory, OfThreadsIsAllThatAJobTook) {
  install_counting_allocator();
  const ModelConfig config = eight_heads(4);
  const std::shared_ptr<const Backbone> whole = random_backbone(config, at::kDouble, at::kCPU);
  RankThreads stages(whole, even_layout(config, 4), 1);
  expect_bytes_to_come_back(*whole, stages.layout(), stages, shared_until_the_end(stages));
  const auto parts = divided_parts(config, 2);
  RankThreads divided(parts, even_layout(config, 2, 1, 2), 1);
  expect_bytes_to_come_back(*parts.front(), divided.layout(), divided, shared_until_the_end(divided));
}

TEST(ReturnedMemory, OfProcessesIsAllThatAJobTook) {
  install_counting_allocator();
  const ModelConfig config = eight_heads(4);
  const std::shared_ptr<const Backbone> whole = random_backbone(config, at::kDouble, at::kCPU);
  const PipelineLayout layout = even_layout(config, 4);
  Processes processes(config, layout);
  expect_bytes_to_come_back(*whole, layout, processes.leader(), processes.events());
  for (const std::string& why : processes.end()) EXPECT_EQ(why, "");
}

}  // namespace
}  // namespace cotune
