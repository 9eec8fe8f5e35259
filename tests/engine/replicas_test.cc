// Replicas of the model, alike or not, train together what one rank trains.
#include <gtest/gtest.h>

#include <limits>

#include "engine/dealt_rounds.h"
#include "engine/rank_threads.h"

namespace cotune {
namespace {

using namespace testing;

struct Shape {
  int32_t stages = 1;
  int64_t tensor = 1;
  int32_t chunks = 1;  ///< stages a rank
};

class Replicas : public ::testing::Test {
 protected:
  Replicas() {
    for (RandomJob& job : jobs) job.optimizer.epsilon = 1e-5;  // far above what sums in another order are apart
    jobs[3].optimizer.kind = OptimizerKind::sgd;
    jobs[3].optimizer.momentum = 0.9;
  }

  std::unique_ptr<RankThreads> ranks_of(const std::vector<Shape>& shapes) {
    std::vector<ReplicaRanks> replicas;
    for (const Shape& shape : shapes) {
      ReplicaRanks& replica = replicas.emplace_back();
      replica.layout = even_layout(config, shape.stages, shape.chunks);
      for (StageShape& stage : replica.layout.stages) stage.tensor_parallel = shape.tensor;
      auto& parts = parts_[shape.tensor];
      for (int64_t index = static_cast<int64_t>(parts.size()); index < shape.tensor; ++index) {
        parts.push_back(Backbone::load(random_model(config, 5), at::kDouble, at::kCPU, {.shard = {index, shape.tensor}}));
      }
      replica.parts = parts;
    }
    return std::make_unique<RankThreads>(std::move(replicas), 1);
  }

  std::vector<at::Tensor> train_on(RankThreads& ranks, uint64_t key, const PackingPolicy& policy) {
    LifeEvents events;
    events.begins = [&](JobLife& life, int32_t job) { ranks.share(job, life.adapter()); };
    events.selected = [&](JobLife& life, int32_t job, int64_t pass) { ranks.end_selection(job, life.adapter(), pass); };
    events.ends = [&](JobLife& life, int32_t job) { ranks.gather(job, life.adapter()); };
    return train(jobs, *whole, policy, [&](Round& round) {
      const auto plans = deal_at_random({&round.plan, 1}, ranks, key);
      ASSERT_TRUE(plans.has_value());
      ranks.run(*plans, round.rounds);
    }, events);
  }

  /// Losses and values after so many rounds that ran at once, as train() lists them.
  std::vector<at::Tensor> trained_values(RankThreads& ranks, Rounds& together, int64_t steps) const {
    std::vector<at::Tensor> trained;
    for (size_t i = 0; i < jobs.size(); ++i) {
      ranks.gather(static_cast<int32_t>(i), *together.adapters[i]);
      for (size_t step = 0; step < static_cast<size_t>(steps); ++step) {
        trained.push_back(at::scalar_tensor(together.rounds[step * jobs.size() + i].loss(), at::kDouble));
      }
      for (const at::Tensor& value : values_of(*together.adapters[i])) trained.push_back(value);
    }
    return trained;
  }

  const ModelConfig config = eight_heads(4, 2);
  const std::shared_ptr<const Backbone> whole = random_backbone(config, at::kDouble, at::kCPU);
  std::map<int64_t, std::vector<std::shared_ptr<const Backbone>>> parts_;
  std::vector<RandomJob> jobs = every_method();
};

TEST_F(Replicas, TrainTheAdaptersOfOneRank) {
  const std::vector<at::Tensor> expected = train_on_one(jobs, whole, small_microbatches());
  PackingPolicy recomputed = small_microbatches();
  recomputed.recompute = true;
  const std::vector<std::vector<Shape>> deployments{
      {{}, {}}, {{}, {.stages = 2}}, {{.tensor = 2}, {}, {}}, {{.stages = 2, .tensor = 2}, {.tensor = 4}, {.stages = 2, .chunks = 2}}};
  uint64_t key = 1;
  for (const std::vector<Shape>& shapes : deployments) {
    const auto ranks = ranks_of(shapes);
    ++key;
    const auto trained = train_on(*ranks, key, key % 2 == 0 ? small_microbatches() : recomputed);
    EXPECT_LE(largest_difference(trained, expected), 1e-10) << "deployment " << key;
  }
}

/// LobRA's <1,1>×2, <2,1>, <1,2>.
TEST_F(Replicas, OfThreeShapesTrainTheAdaptersOfOneRankForTwentySteps) {
  jobs.resize(3);  // of each method
  for (RandomJob& job : jobs) job.steps = 20;
  const auto ranks = ranks_of({{}, {}, {.tensor = 2}, {.stages = 2}});
  EXPECT_LE(largest_difference(train_on(*ranks, 19, small_microbatches()), train_on_one(jobs, whole, small_microbatches())), 1e-10);
}

TEST_F(Replicas, HaveEqualBits) {
  const auto ranks = ranks_of({{}, {.stages = 2}, {}});
  std::vector<RandomJob> few(jobs.begin(), jobs.begin() + 2);
  Rounds together = rounds_of(few, config, small_microbatches(), 3);
  for (size_t i = 0; i < few.size(); ++i) ranks->share(static_cast<int32_t>(i), *together.adapters[i]);
  const auto plans = deal_at_random(together.plans, *ranks, 7);
  ASSERT_TRUE(plans.has_value());
  ranks->run(*plans, together.rounds);
  for (const JobRound& round : together.rounds) EXPECT_TRUE(round.stepped) << round.failure;
  for (size_t i = 0; i < few.size(); ++i) {
    std::vector<std::vector<at::Tensor>> of_replica;
    for (int32_t replica = 0; replica < 3; ++replica) {
      const Adapter& own = ranks->adapter_of(static_cast<int32_t>(i), replica, 0);
      of_replica.push_back(values_of(own));
    }
    EXPECT_EQ(difference_in_bits(of_replica[0], of_replica[1]), "");
    EXPECT_EQ(difference_in_bits(of_replica[0], of_replica[2]), "");
  }
}

size_t pairs_of(const ReplicaPlans& plans) {
  size_t pairs = 0;
  for (const RankPlan& replica : plans.replicas) {
    pairs += static_cast<size_t>(std::ranges::count_if(replica.clocks, [](const PipelineClock& clock) { return clock.microbatches.size() == 2; }));
  }
  return pairs;
}

TEST_F(Replicas, TrainTheSameWithMicrobatchesSideBySide) {
  std::erase_if(jobs, [](const RandomJob& job) { return job.adapter.method == AdapterMethod::diff_pruning; });
  const std::vector<at::Tensor> expected = train_on_one(jobs, whole, small_microbatches());
  const int64_t steps = jobs.front().steps;
  size_t planned = 0, pairs = 0;
  for (const std::vector<Shape>& shapes : std::vector<std::vector<Shape>>{{{.tensor = 2}, {}}, {{.stages = 2, .tensor = 2}, {.tensor = 2}}}) {
    for (const RankOrder order : {RankOrder::automatic, RankOrder::lorapp, RankOrder::gpipe}) {
      const auto ranks = ranks_of(shapes);
      Rounds together = rounds_of(jobs, config, small_microbatches(), steps);
      const SideBySide side_by_side{config, together.rounds};
      const auto plans = deal_at_random(together.plans, *ranks, 3 + static_cast<uint64_t>(order), order, &side_by_side);
      if (!plans) continue;
      ++planned;
      pairs += pairs_of(*plans);
      for (size_t i = 0; i < jobs.size(); ++i) ranks->share(static_cast<int32_t>(i), *together.adapters[i]);
      ranks->run(*plans, together.rounds);
      EXPECT_LE(largest_difference(trained_values(*ranks, together, steps), expected), 1e-10) << "order " << static_cast<int>(order);
    }
  }
  EXPECT_GE(planned, 3u);
  EXPECT_GT(pairs, 10u);
}

TEST_F(Replicas, TrainTheSameWithoutAFlushBetweenRounds) {
  std::erase_if(jobs, [](const RandomJob& job) { return job.adapter.method == AdapterMethod::diff_pruning; });
  const std::vector<at::Tensor> expected = train_on_one(jobs, whole, small_microbatches());
  const int64_t steps = jobs.front().steps;
  for (const RankOrder order : {RankOrder::automatic, RankOrder::lorapp, RankOrder::gpipe, RankOrder::muxtune, RankOrder::one_f_one_b}) {
    const auto ranks = ranks_of({{.stages = 2}, {}, {.stages = 2}});
    Rounds together = rounds_of(jobs, config, small_microbatches(), steps);
    std::optional<ReplicaPlans> plans;
    for (uint64_t key = 0; !plans && key < 10; ++key) plans = deal_at_random(together.plans, *ranks, key, order);  // some have no order
    ASSERT_TRUE(plans.has_value()) << "order " << static_cast<int>(order);
    for (size_t i = 0; i < jobs.size(); ++i) ranks->share(static_cast<int32_t>(i), *together.adapters[i]);
    ranks->run(*plans, together.rounds);
    EXPECT_LE(largest_difference(trained_values(*ranks, together, steps), expected), 1e-10) << "order " << static_cast<int>(order);
  }
}

TEST_F(Replicas, LeaveAJobAloneFromTheStepOnThatIsNotFinite) {
  const std::vector<RandomJob> two{lora_job("sound", 1, 4, 0, {"all-linear"}, {30, 20}), lora_job("broken", 2, 4, 0, {"all-linear"}, {31, 12})};
  const auto ranks = ranks_of({{}, {.stages = 2}});
  Rounds together = rounds_of(two, config, small_microbatches(), 2);
  // Of its values, not of what passes through them: what is broken comes back with the sums.
  together.adapters[1]->parameters().front().value.fill_(std::numeric_limits<double>::infinity());
  together.adapters[1]->refresh();
  for (int32_t job = 0; job < 2; ++job) ranks->share(job, *together.adapters[static_cast<size_t>(job)]);
  const auto plans = deal_at_random(together.plans, *ranks, 5);
  ASSERT_TRUE(plans.has_value());
  ranks->run(*plans, together.rounds);
  for (const size_t round : {0, 2}) EXPECT_TRUE(together.rounds[round].stepped) << together.rounds[round].failure;
  for (const size_t round : {1, 3}) {
    EXPECT_FALSE(together.rounds[round].stepped);
    EXPECT_NE(together.rounds[round].failure, "");
  }
}

TEST_F(Replicas, EvaluateAsOneRankDoes) {
  const auto ranks = ranks_of({{}, {.stages = 2}, {.tensor = 2}});
  expect_evaluation_of_one_rank(*ranks, whole, [&](const StepPlan& round) {
    ReplicaPlans plans = *deal_at_random({&round, 1}, *ranks, 11);
    plans.exchanges.clear();
    return plans;
  });
}

TEST_F(Replicas, ThatBreakOffHaveMadeEachStepEverywhereOrNowhere) {
  const auto ranks = ranks_of({{}, {.stages = 2}});
  expect_dealt_steps_everywhere_or_nowhere(*ranks, whole, 1);
}

TEST_F(Replicas, SendNoMoreThanTheLeast) {
  std::vector<RandomJob> one{lora_job("lora", 1, 8, 0, {"all-linear"}, {12, 40, 31, 8})};
  const auto ranks = ranks_of({{.tensor = 2}, {}, {.stages = 2}});
  Rounds together = rounds_of(one, config, small_microbatches(), 1);
  ranks->share(0, *together.adapters.front());
  const auto plans = deal_at_random(together.plans, *ranks, 17);
  ranks->run(*plans, together.rounds);
  // Per value: two gifts and two returns; what every rank of the divided replica has returns once more.
  int64_t least = 0;
  const Adapter& part = ranks->adapter_of(0, 0, 0);
  for (size_t i = 0; i < part.parameters().size(); ++i) {
    const bool is_whole_everywhere = part.parameters()[i].place.dimension < 0;
    least += together.adapters.front()->parameters()[i].value.numel() * (is_whole_everywhere ? 5 : 4);
    // Of two kv heads each of the two ranks has one: those are cut, like all others.
  }
  int64_t sent = 0;
  for (const RankTime& time : ranks->times().ranks) sent += time.exchanged_bytes;
  EXPECT_EQ(sent, least * 8);
}

}  // namespace
}  // namespace cotune
