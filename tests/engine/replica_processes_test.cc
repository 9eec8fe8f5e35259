// Replicas of the model, alike or not, whose ranks are processes, train together what one rank trains.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>

#include "engine/dealt_rounds.h"
#include "engine/process_ranks.h"
#include "ops/memory.h"

namespace cotune {
namespace {

using namespace testing;

class ReplicasAsProcesses : public ::testing::Test {
 protected:
  ReplicasAsProcesses() {
    for (RandomJob& job : jobs) job.optimizer.epsilon = 1e-5;  // far above what sums in another order are apart
    jobs[3].optimizer.kind = OptimizerKind::sgd;
    jobs[3].optimizer.momentum = 0.9;
  }

  PipelineLayout layout(int32_t stages, int64_t tensor = 1, int32_t chunks = 1) const { return even_layout(config, stages, chunks, tensor); }

  RunRound dealt_to(RankLeader& leader, uint64_t key) const {
    return [&leader, key](Round& round) { run_dealt(leader, round, key); };
  }

  const ModelConfig config = eight_heads(4, 2);
  const std::shared_ptr<const Backbone> whole = random_backbone(config, at::kDouble, at::kCPU);
  std::vector<RandomJob> jobs = every_method();
};

TEST_F(ReplicasAsProcesses, TrainTheAdaptersOfOneRank) {
  const std::vector<at::Tensor> expected = train_on_one(jobs, whole, small_microbatches());
  PackingPolicy recomputed = small_microbatches();
  recomputed.recompute = true;
  const PackingPolicy policies[] = {small_microbatches(), recomputed, small_chunks()};
  const std::vector<std::vector<PipelineLayout>> deployments{
      {layout(1), layout(1)}, {layout(1), layout(2)}, {layout(2), layout(1, 2), layout(1)}, {layout(1, 2), layout(2, 1, 2), layout(1, 4)}};
  uint64_t key = 1;
  for (const std::vector<PipelineLayout>& layouts : deployments) {
    Processes processes(config, layouts);
    RankLeader& leader = processes.leader();
    ++key;
    const auto trained =
        train(jobs, *whole, policies[key % 3], dealt_to(leader, key), processes.events());
    EXPECT_LE(largest_difference(trained, expected), 1e-10) << "deployment " << key;
    const RankTimes& times = leader.times();
    EXPECT_EQ(times.first_rank.size(), layouts.size());
    for (const RankTime& time : times.ranks) {
      EXPECT_GT(time.exchanged_bytes, 0);
      EXPECT_GT(time.exchanging_s, 0);
      EXPECT_LE(time.exchanging_s, time.waited_s);
    }
    for (const std::string& why : processes.end()) EXPECT_EQ(why, "");
  }
}

TEST_F(ReplicasAsProcesses, EvaluateAsOneRankDoes) {
  Processes processes(config, {layout(1), layout(2), layout(1, 2)});
  expect_evaluation_of_one_rank(processes.leader(), whole, [&](const StepPlan& round) {
    ReplicaPlans plans = *deal_at_random({&round, 1}, processes.leader(), 11);
    plans.exchanges.clear();
    return plans;
  });
}

TEST_F(ReplicasAsProcesses, ThatBreakOffHaveMadeEachStepEverywhereOrNowhere) {
  Processes processes(config, {layout(2), layout(1)});
  expect_dealt_steps_everywhere_or_nowhere(processes.leader(), whole, 0);
}

TEST_F(ReplicasAsProcesses, SayWhatFailedOnAnotherReplicaAndGoOn) {
  std::atomic<bool> fails{false};
  Processes processes(config, {layout(1), layout(2)}, [&](int32_t rank) {
    if (fails && rank == 2) throw MemoryLimitExceeded("no room for activations");
  });
  RankLeader& leader = processes.leader();
  std::vector<std::unique_ptr<JobLife>> lives;
  lives.push_back(std::make_unique<JobLife>(0, lora_job("a", 1, 4, 0, {"all-linear"}, {30, 20}), *whole));
  leader.share(0, lives.front()->adapter());
  Round round = next_round(lives, small_microbatches(), config);
  const auto plans = deal_at_random({&round.plan, 1}, leader, 3);
  fails = true;
  try {
    leader.run(*plans, round.rounds);
    ADD_FAILURE() << "went on without memory";
  } catch (const MemoryLimitExceeded& error) {
    EXPECT_STREQ(error.what(), "rank 2: no room for activations");
  }
  EXPECT_FALSE(round.rounds.front().stepped);
  fails = false;
  leader.run(*plans, round.rounds);
  EXPECT_TRUE(round.rounds.front().stepped) << round.rounds.front().failure;
  for (const std::string& why : processes.end()) EXPECT_EQ(why, "");
}

TEST_F(ReplicasAsProcesses, SendNoMoreThanTheLeast) {
  const std::vector<RandomJob> one{lora_job("lora", 1, 8, 0, {"all-linear"}, {12, 40, 31, 8})};
  Processes processes(config, {layout(1), layout(2), layout(1)});
  RankLeader& leader = processes.leader();
  Rounds together = rounds_of(one, config, small_microbatches(), 1);
  leader.share(0, *together.adapters.front());
  leader.run(*deal_at_random(together.plans, leader, 17), together.rounds);
  int64_t sent = 0;
  for (const RankTime& time : leader.times().ranks) sent += time.exchanged_bytes;
  EXPECT_EQ(sent, 4 * together.adapters.front()->parameter_count() * 8);  // two gifts and two returns of each value
}

}  // namespace
}  // namespace cotune
