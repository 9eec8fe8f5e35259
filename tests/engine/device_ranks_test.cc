// Ranks on devices of their own, whose tensors go from device to device: they train what one rank trains on the CPU. The device is host
// memory that operators alone may touch (guarded_device.h), the groups are threads (thread_device_groups.h).
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "engine/dealt_rounds.h"
#include "engine/process_ranks.h"
#include "support/guarded_device.h"
#include "support/thread_device_groups.h"

namespace cotune {
namespace {

using namespace testing;

class DeviceRanks : public ::testing::Test {
 protected:
  DeviceRanks() {
    for (RandomJob& job : jobs) {
      job.steps = 2;
      job.optimizer.epsilon = 1e-5;  // far above what sums in another order are apart
    }
    jobs[3].row_lengths = {270, 20};
    jobs[4].row_lengths = {51};
    jobs[4].adapter.layers_to_transform = {1};
  }

  PipelineLayout layout(int32_t stages, int64_t degree = 1, bool is_sequence_parallel = false) const {
    PipelineLayout layout = even_layout(config, stages, 1, degree);
    for (StageShape& stage : layout.stages) stage.is_sequence_parallel = is_sequence_parallel;
    return layout;
  }

  std::unique_ptr<Processes> processes(const std::vector<PipelineLayout>& layouts) const {
    return std::make_unique<Processes>(config, layouts, nullptr, at::kDouble, guarded_device());
  }

  /// Of those jobs, on one rank of the CPU.
  std::vector<at::Tensor> expected() const { return train_on_one(jobs, random_backbone(config, at::kDouble, at::kCPU), small_microbatches()); }

  static std::vector<at::Tensor> on_host(std::vector<at::Tensor> values) {
    for (at::Tensor& each : values) each = each.cpu();
    return values;
  }

  const ModelConfig config = eight_heads(2);
  const std::shared_ptr<const Backbone> there = random_backbone(config, at::kDouble, guarded_device().device);
  std::vector<RandomJob> jobs = every_method();
};

TEST_F(DeviceRanks, OfAPipelineOrThatDivideLayersTrainTheAdaptersOfOneRank) {
  const std::vector<at::Tensor> one = expected();
  for (const auto& [shape, sends] : {std::pair(layout(2), true), {layout(1, 2), false}, {layout(2, 2), true}, {layout(1, 2, true), false}}) {
    const int64_t before = ThreadDeviceGroups::instance().messages_begun();
    const auto ranks = processes({shape});
    RankLeader& leader = ranks->leader();
    const auto run = [&](Round& round) { leader.run(plan_round(round.plan, leader.layout()), round.rounds); };
    const auto trained = on_host(train(jobs, *there, small_microbatches(), run, ranks->events()));
    EXPECT_LE(largest_difference(trained, one), 1e-10) << shape.stages.size() << " stages of " << shape.tensor_parallel();
    for (const std::string& why : ranks->end()) EXPECT_EQ(why, "");
    EXPECT_EQ(ThreadDeviceGroups::instance().messages_begun() > before, sends);
  }
}

TEST_F(DeviceRanks, ThatComputeWhileSumsAreUnderWayTrainTheSame) {
  const auto ranks = processes({layout(1, 2)});
  RankLeader& leader = ranks->leader();
  const auto run = [&](Round& round) { leader.run(plan_interleaved_round(round.plan, round.rounds, config, leader.layout()), round.rounds); };
  EXPECT_LE(largest_difference(on_host(train(jobs, *there, small_microbatches(), run, ranks->events())), expected()), 1e-10);
}

TEST_F(DeviceRanks, OfSeveralReplicasTrainTheAdaptersOfOneRank) {
  const std::vector<at::Tensor> one = expected();
  uint64_t key = 1;
  for (const auto& layouts : {std::vector{layout(1), layout(1)}, {layout(2), layout(1, 2)}}) {
    const auto ranks = processes(layouts);
    RankLeader& leader = ranks->leader();
    const auto run = [&](Round& round) {
      const auto plans = deal_at_random({&round.plan, 1}, leader, key);
      ASSERT_TRUE(plans.has_value());
      leader.run(*plans, round.rounds);
    };
    EXPECT_LE(largest_difference(on_host(train(jobs, *there, small_microbatches(), run, ranks->events())), one), 1e-10) << layouts.size();
    ++key;
  }
}

TEST_F(DeviceRanks, ThatBreakOffHaveMadeEachStepEverywhereOrNowhere) {
  const auto divided = processes({layout(1, 2)});
  expect_steps_everywhere_or_nowhere(divided->leader(), there, 0, 130);
  const auto replicas = processes({layout(1), layout(2)});
  expect_dealt_steps_everywhere_or_nowhere(replicas->leader(), there, 0);
}

}  // namespace
}  // namespace cotune
