// Ranks that are processes are divided anew between rounds: each reads the weights that it lacks, and all train what one rank trains.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>

#include "engine/dealt_rounds.h"
#include "engine/process_ranks.h"
#include "ops/memory.h"

namespace cotune {
namespace {

using namespace testing;

class DividedProcesses : public ::testing::Test {
 protected:
  DividedProcesses() {
    for (RandomJob& job : jobs) job.optimizer.epsilon = 1e-5;  // far above what sums in another order are apart
  }

  PipelineLayout layout(int32_t stages, int64_t tensor = 1, bool shards = false) const {
    PipelineLayout one = even_layout(config, stages, 1, tensor);
    one.shards_weights = shards;
    return one;
  }

  /// Divides the ranks as `layouts`, with what they have of these jobs.
  static void divide(RankLeader& leader, const std::vector<PipelineLayout>& layouts, const std::map<int32_t, JobLife*>& lives) {
    for (const auto& [job, life] : lives) leader.gather(job, life->adapter());
    leader.divide(layouts);
    for (const auto& [job, life] : lives) leader.share(job, life->adapter());
  }

  static void run_round(RankLeader& leader, Round& round, uint64_t key) {
    if (leader.layouts().size() == 1) return leader.run(plan_round(round.plan, leader.layout()), round.rounds);
    run_dealt(leader, round, key);
  }

  const ModelConfig config = eight_heads(4, 2);
  const std::shared_ptr<const Backbone> whole = random_backbone(config, at::kDouble, at::kCPU);
  std::vector<RandomJob> jobs = every_method();
};

TEST_F(DividedProcesses, TrainTheAdaptersOfOneRankInHoweverManyDivisions) {
  const std::vector<at::Tensor> expected = train_on_one(jobs, whole, small_microbatches());
  const std::vector<std::vector<PipelineLayout>> divisions{{layout(4)},
                                                           {layout(2), layout(2)},
                                                           {layout(1), layout(1), layout(1), layout(1)},
                                                           {layout(2, 2)},
                                                           {layout(1, 1, true), layout(1, 1, true), layout(2)},
                                                           {layout(1, 2), layout(2)},
                                                           {layout(1, 1, true), layout(1, 1, true), layout(1, 1, true), layout(1, 1, true)},
                                                           {layout(1, 4)},
                                                           {layout(1), layout(3)}};
  Processes processes(config, divisions.front());
  RankLeader& leader = processes.leader();
  std::map<int32_t, JobLife*> lives;
  size_t now = 0;
  uint64_t key = 0;
  size_t divided = 0;
  const auto run = [&](Round& round) {
    const bool selects = std::ranges::any_of(round.rounds, [](const JobRound& each) { return each.purpose == RoundPurpose::select; });
    for (int i = 0; i < 3 && !selects; ++i) {
      now = (now + 1) % divisions.size();
      divide(leader, divisions[now], lives);
      EXPECT_EQ(std::ssize(leader.layouts()), std::ssize(divisions[now]));
      ++divided;
    }
    run_round(leader, round, ++key);
  };
  LifeEvents events = processes.events();
  const auto begins = events.begins, ends = events.ends;
  events.begins = [&](JobLife& life, int32_t job) {
    begins(life, job);
    lives[job] = &life;
  };
  events.ends = [&](JobLife& life, int32_t job) {
    ends(life, job);
    lives.erase(job);
  };
  std::vector<at::Tensor> trained = train(jobs, *whole, small_microbatches(), run, events);
  EXPECT_LE(largest_difference(trained, expected), 1e-10);
  EXPECT_GE(divided, divisions.size()) << "every division was tried";
  for (const std::string& why : processes.end()) EXPECT_EQ(why, "");
}

TEST_F(DividedProcesses, HoldTheWeightsOfTheirNewPlaceAlone) {
  Processes processes(config, layout(4));
  for (const std::vector<PipelineLayout>& layouts : {std::vector{layout(2), layout(2)}, {layout(2, 2)}, {layout(1, 1, true), layout(1, 1, true), layout(2)},
                                                     {layout(1), layout(3)}, {layout(4)}}) {
    int64_t most = 0;
    for (int32_t rank = 0; rank < 4; ++rank) most = std::max(most, backbone_of_rank(config, layouts, rank)->weight_bytes());
    EXPECT_EQ(processes.leader().divide(layouts), most);
  }
}

/// One rank has no room for its new weights: all go on as they were.
TEST_F(DividedProcesses, SayWhatFailedAndAreDividedAsBefore) {
  jobs = {lora_job("a", 1, 4, 0, {"all-linear"}, {30, 20}), bottleneck_job("b", 3, 8, Activation::relu, {40})};
  const std::vector<at::Tensor> expected = train_on_one(jobs, whole, small_microbatches());
  std::atomic<int32_t> failing{0};
  std::atomic<int> failures{0};
  Processes processes(config, {layout(2), layout(1)}, [&](int32_t rank) {
    if (rank != failing) return;
    ++failures;
    throw MemoryLimitExceeded("no room for weights");
  });
  RankLeader& leader = processes.leader();
  std::map<int32_t, JobLife*> lives;
  const auto run = [&](Round& round) {
    for (const auto& [job, life] : lives) leader.gather(job, life->adapter());
    failing = 1 + failures % 2;
    try {
      leader.divide({layout(1), layout(2)});
      ADD_FAILURE() << "went on without memory";
    } catch (const MemoryLimitExceeded& error) {
      EXPECT_EQ(error.what(), "rank " + std::to_string(failing) + ": no room for weights");
    }
    failing = 0;
    leader.divide({layout(2), layout(1)});
    for (const auto& [job, life] : lives) leader.share(job, life->adapter());
    run_round(leader, round, 7);
  };
  LifeEvents events = processes.events();
  const auto begins = events.begins;
  events.begins = [&](JobLife& life, int32_t job) {
    begins(life, job);
    lives[job] = &life;
  };
  const auto ends = events.ends;
  events.ends = [&](JobLife& life, int32_t job) {
    ends(life, job);
    lives.erase(job);
  };
  EXPECT_LE(largest_difference(train(jobs, *whole, small_microbatches(), run, events), expected), 1e-10);
  EXPECT_GE(failures, 2) << "on either of the others";
  for (const std::string& why : processes.end()) EXPECT_EQ(why, "");
}

/// Where some ranks have their new groups and others not, nothing more can be asked of them: all end.
TEST_F(DividedProcesses, ThatCannotAllJoinAnewEnd) {
  for (const int32_t refused : {0, 1, 2}) {
    Processes processes(config, {layout(2), layout(1)});
    processes.leader().divide({layout(1), layout(2)});  // all are there
    processes.refuse_groups_of(refused);
    EXPECT_THROW(processes.leader().divide({layout(2), layout(1)}), CommunicationEnded) << refused;
    const std::vector<std::string>& why = processes.end();
    for (size_t rank = 1; rank < why.size(); ++rank) EXPECT_NE(why[rank], "") << rank;
  }
}

/// What both uses ask for stays where it is.
TEST_F(DividedProcesses, KeepTheLayersThatStayTheirs) {
  const ModelFiles files = random_model(config, 5);
  BackboneUse lower, upper;
  lower.stages = {{.first_layer = 0, .last_layer = 3, .has_embedding = true, .has_head = false}};
  upper.stages = {{.first_layer = 1, .last_layer = 4, .has_embedding = false, .has_head = true}};
  const std::shared_ptr<Backbone> backbone = Backbone::load(files, at::kDouble, at::kCPU, lower);
  std::map<int64_t, std::shared_ptr<const FrozenProduct>> before;
  for (const int64_t layer : {1, 2}) before[layer] = backbone->layer(layer).qkv;
  backbone->use_for(files, upper);
  for (const auto& [layer, product] : before) EXPECT_EQ(backbone->layer(layer).qkv, product) << layer;
  EXPECT_EQ(backbone->layer(0).qkv, nullptr);
  EXPECT_EQ(backbone->weight_bytes(), Backbone::load(files, at::kDouble, at::kCPU, upper)->weight_bytes());
  const at::Tensor tokens = at::arange(config.vocabulary_size);
  backbone->use_for(files, lower);
  EXPECT_TRUE(at::equal(backbone->embed(tokens), whole->embed(tokens)));
  EXPECT_EQ(backbone->layer(2).qkv, before[2]);
  BackboneUse part = lower;
  part.shard = {1, 2};
  backbone->use_for(files, part);
  EXPECT_NE(backbone->layer(2).qkv, before[2]) << "another part of it";
  EXPECT_EQ(backbone->weight_bytes(), Backbone::load(files, at::kDouble, at::kCPU, part)->weight_bytes());
}

}  // namespace
}  // namespace cotune
