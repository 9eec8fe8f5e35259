// Ranks with weights, adapters and memory of their own, as processes have them; here each is a thread, and shares nothing.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "engine/rank_follower.h"
#include "engine/rank_leader.h"
#include "engine/rank_rounds.h"
#include "ops/memory.h"
#include "schedule/pipeline/gpipe.h"

namespace cotune {
namespace {

using namespace testing;

/// Groups of threads that are made when the first of their ranks asks.
class ThreadGroups {
 public:
  explicit ThreadGroups(int32_t size) : size_(size), asked_(static_cast<size_t>(size), 0) {}

  RankLinks links(int32_t rank) {
    return make_links([this, rank] {
      const std::lock_guard lock(mutex_);
      const size_t index = asked_[static_cast<size_t>(rank)]++;
      if (index == groups_.size()) groups_.push_back(thread_communicators(size_));
      return std::move(groups_[index][static_cast<size_t>(rank)]);
    });
  }

 private:
  int32_t size_;
  std::mutex mutex_;
  std::vector<size_t> asked_;
  std::vector<std::vector<std::unique_ptr<Communicator>>> groups_;
};

/// What random_backbone gives, as far as a rank needs it.
std::shared_ptr<Backbone> backbone_of(const ModelConfig& config, const PipelineLayout& layout, int32_t rank) {
  BackboneUse use;
  for (size_t i = 0; i < layout.stages.size(); ++i) {
    if (layout.stage_rank[i] == rank) use.stages.push_back(layout.stages[i]);
  }
  return Backbone::load(random_model(config, 5), at::kDouble, at::kCPU, use);
}

/// A leader in this thread, and its followers.
class Processes {
 public:
  /// before_work: of the followers.
  Processes(const ModelConfig& config, const PipelineLayout& layout, std::function<void(int32_t rank)> before_work = {})
      : groups_(layout.rank_count()), ended_(static_cast<size_t>(layout.rank_count())) {
    for (int32_t rank = 1; rank < layout.rank_count(); ++rank) {
      threads_.emplace_back([=, this] {
        RankFollower follower(backbone_of(config, layout, rank), layout, groups_.links(rank));
        if (before_work) follower.before_work = [=] { before_work(rank); };
        try {
          follower.serve();
        } catch (const std::exception& error) {
          ended_[static_cast<size_t>(rank)] = error.what();
        }
      });
    }
    leader_ = std::make_unique<RankLeader>(backbone_of(config, layout, 0), layout,
                                           groups_.links(0));
  }
  ~Processes() { end(); }

  RankLeader& leader() { return *leader_; }
  LifeEvents events() {
    return {.begins = [this](JobLife& life, int32_t job) { leader_->share(job, life.adapter()); },
            .selected = [this](JobLife& life, int32_t job, int64_t pass) { leader_->end_selection(job, life.adapter(), pass); },
            .ends =
                [this](JobLife& life, int32_t job) {
                  leader_->gather(job, life.adapter());
                  leader_->forget(job);
                }};
  }
  /// Why followers ended, by rank; "" where they were told to.
  const std::vector<std::string>& end() {
    leader_.reset();
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
    return ended_;
  }

 private:
  ThreadGroups groups_;
  std::vector<std::string> ended_;
  std::vector<std::thread> threads_;
  std::unique_ptr<RankLeader> leader_;
};

class RanksAsProcesses : public ::testing::Test {
 protected:
  RankPlanOptions options_for(RankOrder order, int32_t ranks) const {
    return {.order = order, .cluster = {}, .bytes_per_token = config.hidden_size * 8, .most_in_flight = ranks};
  }
  RankPlan plan_of(const Round& round, const PipelineLayout& layout, RankOrder order = RankOrder::automatic) const {
    return plan_ranks({round.plan}, layout, one_unit, options_for(order, layout.rank_count()));
  }

  const ModelConfig config = kernel_friendly_config(4);
  const std::shared_ptr<const Backbone> backbone = random_backbone(config, at::kDouble, at::kCPU);
  const PackingPolicy small_microbatches{.sharing = Sharing::temporal, .token_budget = 256};
};

TEST_F(RanksAsProcesses, TrainTheAdaptersOfOneRank) {
  const std::vector<RandomJob> jobs = every_method();
  const std::vector<at::Tensor> expected = train_on_one(jobs, backbone, small_microbatches);
  PackingPolicy recomputed = small_microbatches;
  recomputed.recompute = true;
  for (const auto& [ranks, policy] : {std::pair(2, small_microbatches), {2, recomputed}, {4, small_microbatches}}) {
    Processes processes(config, even_layout(config, ranks));
    const auto run = [&](Round& round) {
      processes.leader().run(plan_of(round, processes.leader().layout()), round.rounds);
    };
    const auto trained = train(jobs, *backbone, policy, run, processes.events());
    EXPECT_LE(largest_difference(trained, expected), 1e-10) << ranks << " ranks";
    const RankTimes& times = processes.leader().times();
    for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) {
      EXPECT_FALSE(times.spans[rank].empty());
      EXPECT_GT(times.operator_seconds[rank].at("qkv_proj"), 0);
      EXPECT_LE(times.waited[rank] + times.idle[rank], times.seconds);
    }
    for (const std::string& why : processes.end()) EXPECT_EQ(why, "");
  }
}

TEST_F(RanksAsProcesses, HoldTheWeightsAndAdaptersOfTheirLayersAlone) {
  const std::vector<RandomJob> jobs = every_method();
  const PipelineLayout layout = even_layout(config, 2);
  int64_t weights = 0;
  for (int32_t rank = 0; rank < 2; ++rank) {
    const auto part = backbone_of(config, layout, rank);
    EXPECT_LT(part->weight_bytes(), backbone->weight_bytes());
    weights += part->weight_bytes();
  }
  // Both have a rotary table, and the embedding, which is tied to the head, is on both.
  const int64_t twice = backbone->embed(at::arange(config.vocabulary_size)).nbytes() +
                        static_cast<int64_t>(backbone->rotary().cosine.nbytes() + backbone->rotary().sine.nbytes());
  EXPECT_EQ(weights, backbone->weight_bytes() + twice);
  for (const RandomJob& job : jobs) {
    const auto whole = job.make_adapter(config, at::kDouble);
    int64_t parameters = 0;
    for (int32_t rank = 0; rank < 2; ++rank) {
      const std::vector<LayerRange> layers = layers_of(layout, rank);
      const auto part = job.make_adapter(config, at::kDouble, at::kCPU, layers);
      EXPECT_EQ(part->lowest_layer(), whole->lowest_layer());
      EXPECT_EQ(part->selection_passes(), whole->selection_passes());
      EXPECT_TRUE(at::equal(flat_state(*part, layers), flat_state(*whole, layers))) << job.name;
      parameters += part->parameter_count();
    }
    EXPECT_EQ(parameters, whole->parameter_count()) << job.name;
  }
}

TEST_F(RanksAsProcesses, TrainTheSameWithoutAFlushAndOverSeveralStagesOfARank) {
  std::vector<RandomJob> jobs = every_method();
  std::erase_if(jobs, [](const RandomJob& job) { return job.adapter.method == AdapterMethod::diff_pruning; });
  const int64_t steps = jobs.front().steps;
  const std::vector<at::Tensor> expected = train_on_one(jobs, backbone, small_microbatches);
  Processes processes(config, even_layout(config, 2, 2));
  RankLeader& leader = processes.leader();
  Rounds together = rounds_of(jobs, config, small_microbatches, steps);
  for (size_t i = 0; i < jobs.size(); ++i) leader.share(static_cast<int32_t>(i), *together.adapters[i]);
  const PipelineWork work = work_of(together.plans, leader.layout(), one_unit, 8);
  leader.run(plan_in_order(together.plans, leader.layout(), work, gpipe(work)), together.rounds);
  std::vector<at::Tensor> trained;
  for (size_t i = 0; i < jobs.size(); ++i) {
    leader.gather(static_cast<int32_t>(i), *together.adapters[i]);
    for (size_t step = 0; step < static_cast<size_t>(steps); ++step) {
      const JobRound& round = together.rounds[step * jobs.size() + i];
      EXPECT_TRUE(round.stepped) << round.failure;
      trained.push_back(at::scalar_tensor(round.loss(), at::kDouble));
    }
    for (const at::Tensor& value : values_of(*together.adapters[i])) trained.push_back(value);
  }
  EXPECT_LE(largest_difference(trained, expected), 1e-10);
}

TEST_F(RanksAsProcesses, EvaluateAsOneRankDoes) {
  Processes processes(config, even_layout(config, 2));
  expect_evaluation_of_one_rank(processes.leader(), backbone);
}

TEST_F(RanksAsProcesses, ThatBreakOffHaveMadeEachStepEverywhereOrNowhere) {
  Processes processes(config, even_layout(config, 2));
  expect_steps_everywhere_or_nowhere(processes.leader(), backbone, 0, 200);
}

TEST_F(RanksAsProcesses, SayWhatFailedOnAnotherRankAndGoOn) {
  const std::vector<RandomJob> jobs{lora_job("a", 1, 4, 0, {"all-linear"}, {30, 20})};
  std::atomic<bool> fails{true};
  Processes processes(config, even_layout(config, 3), [&](int32_t rank) {
    if (fails && rank == 1) throw MemoryLimitExceeded("no room for activations");
  });
  std::vector<std::unique_ptr<JobLife>> lives;
  lives.push_back(std::make_unique<JobLife>(0, jobs.front(), *backbone));
  try {
    processes.leader().share(0, lives.front()->adapter());
    FAIL() << "shared without memory";
  } catch (const MemoryLimitExceeded& error) {
    EXPECT_STREQ(error.what(), "rank 1: no room for activations");
  }
  processes.leader().forget(0);
  fails = false;
  processes.leader().share(0, lives.front()->adapter());
  fails = true;
  Round round = next_round(lives, small_microbatches, config);
  const RankPlan plan = plan_of(round, processes.leader().layout());
  try {
    processes.leader().run(plan, round.rounds);
    FAIL() << "went on without memory";
  } catch (const MemoryLimitExceeded& error) {
    EXPECT_STREQ(error.what(), "rank 1: no room for activations");
  }
  EXPECT_FALSE(round.rounds.front().stepped);
  fails = false;
  processes.leader().run(plan, round.rounds);
  EXPECT_TRUE(round.rounds.front().stepped) << round.rounds.front().failure;
}

}  // namespace
}  // namespace cotune
