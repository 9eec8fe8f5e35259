#include "engine/rank_threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <limits>
#include <list>
#include <set>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/random.h"
#include "engine/rank_rounds.h"
#include "engine/thread_watch.h"
#include "ops/memory.h"
#include "schedule/pipeline/gpipe.h"
#include "schedule/pipeline/lorapp.h"

namespace cotune {
namespace {

using namespace testing;

class RanksAsThreads : public ::testing::Test {
 protected:
  RankPlanOptions options_for(RankOrder order, int32_t ranks) const {
    return {.order = order, .cluster = {}, .bytes_per_token = token_bytes(config.hidden_size, 8), .most_in_flight = ranks};
  }

  const ModelConfig config = kernel_friendly_config(4);
  const std::shared_ptr<const Backbone> backbone = random_backbone(config, at::kDouble, at::kCPU);
  const PackingPolicy small_microbatches{.sharing = Sharing::temporal, .token_budget = 256};
};

TEST_F(RanksAsThreads, TrainTheAdaptersOfOneRankWhateverTheirNumberAndOrder) {
  const std::vector<RandomJob> jobs = every_method();
  const std::vector<at::Tensor> expected = train_on_one(jobs, backbone, small_microbatches);
  const auto expect_equal = [&](RankThreads& ranks, RankOrder order, PackingPolicy policy) {
    const auto trained = train(jobs, *backbone, policy, [&](Round& round) {
      ranks.run(plan_ranks({round.plan}, ranks.layout(), one_unit, options_for(order, ranks.rank_count())), round.rounds);
    });
    EXPECT_LE(largest_difference(trained, expected), 1e-10) << ranks.rank_count() << " ranks, order " << static_cast<int>(order);
  };
  RankThreads two(backbone, even_layout(config, 2), 1), four(backbone, even_layout(config, 4), 1);
  for (const RankOrder order : {RankOrder::automatic, RankOrder::gpipe, RankOrder::lorapp}) expect_equal(two, order, small_microbatches);
  for (const RankOrder order : {RankOrder::one_f_one_b, RankOrder::muxtune}) expect_equal(four, order, small_microbatches);
  PackingPolicy recomputed = small_microbatches;
  recomputed.recompute = true;
  expect_equal(two, RankOrder::automatic, recomputed);
  expect_equal(two, RankOrder::automatic, small_chunks());
  RankThreads two_stages_each(backbone, even_layout(config, 2, 2), 1);
  expect_equal(two_stages_each, RankOrder::automatic, small_microbatches);
}

TEST_F(RanksAsThreads, ThatHangAreFoundAndNamed) {
  RankThreads ranks(backbone, even_layout(config, 2), 1);
  std::promise<std::string> found;
  std::promise<void> freed;
  std::shared_future<void> is_freed = freed.get_future().share();
  ranks.observe([&](int32_t rank, const Operator& op) {
    if (rank == 1 && op.kind == OperatorKind::down_proj) is_freed.wait();
  });
  const ThreadWatch watch(ranks.progress_of_ranks(), "ant", 0.5, [&](const std::string& trouble) {
    found.set_value(trouble);
    freed.set_value();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(800));  // between runs nobody hangs
  std::future<std::string> trouble = found.get_future();
  EXPECT_EQ(trouble.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  const auto a_moment = [](const StepPlan&, size_t, size_t) { return StageCost{.forward_s = 1e-3, .backward_s = 1e-3, .kept_bytes = 1}; };
  train(every_method(), *backbone, small_microbatches, [&](Round& round) {
    ranks.run(plan_ranks({round.plan}, ranks.layout(), a_moment, options_for(RankOrder::automatic, ranks.rank_count())), round.rounds);
  });
  EXPECT_THAT(trouble.get(), ::testing::MatchesRegex("rank 1 on ant hangs: forward of microbatch [0-9]+ on stage 1 has taken [0-9]+ s"));
  ranks.observe({});
}

TEST_F(RanksAsThreads, OfOneRankAndOfSeveralStagesEachTrainTheSame) {
  const std::vector<RandomJob> jobs = every_method();
  const std::vector<at::Tensor> expected = train_on_one(jobs, backbone, small_microbatches);
  for (const auto& [ranks, chunks] : {std::pair(1, 1), {1, 2}, {2, 2}}) {
    RankThreads threads(backbone, even_layout(config, ranks, chunks), 1);
    const auto trained = train(jobs, *backbone, small_microbatches, [&](Round& round) {
      const PipelineWork work = work_of({round.plan}, threads.layout(), one_unit, {8, 8});
      ComputeOrder order = gpipe(work);
      threads.run(plan_in_order({round.plan}, threads.layout(), work, order), round.rounds);
    });
    EXPECT_LE(largest_difference(trained, expected), 1e-10) << ranks << " ranks of " << chunks << " stages";
  }
}

TEST_F(RanksAsThreads, ChangeNoBitWhereverTheModelIsCutInTheDtypesOfTraining) {
  const std::vector<RandomJob> jobs = every_method();
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    const std::shared_ptr<const Backbone> model = random_backbone(config, compute, at::kCPU);
    const std::vector<at::Tensor> expected = train_on_one(jobs, model, small_microbatches);
    for (const auto& [ranks, chunks] : {std::pair(2, 1), {3, 1}, {4, 1}, {2, 2}}) {
      RankThreads threads(model, even_layout(config, ranks, chunks), 1);
      const auto trained = train(jobs, *model, small_microbatches, [&](Round& round) {
        threads.run(plan_ranks({round.plan}, threads.layout(), one_unit, options_for(RankOrder::automatic, ranks)), round.rounds);
      });
      ASSERT_EQ(trained.size(), expected.size());
      for (size_t i = 0; i < trained.size(); ++i) {
        EXPECT_TRUE(at::equal(trained[i], expected[i])) << compute << ", " << ranks << " ranks of " << chunks << " stages, value " << i;
      }
    }
  }
}

/// Any order that the computations may have.
ComputeOrder random_order(const PipelineWork& work, uint64_t key) {
  const ComputeGraph graph(work, {});
  std::vector<int32_t> waiting = graph.predecessor_counts(), ready;
  for (int32_t node = 0; node < graph.size(); ++node) {
    if (graph.exists(node) && waiting[static_cast<size_t>(node)] == 0) ready.push_back(node);
  }
  ComputeOrder order(static_cast<size_t>(work.rank_count));
  for (uint64_t drawn = 0; !ready.empty(); ++drawn) {
    const auto pick = static_cast<std::ptrdiff_t>(uniform_below(key, drawn, ready.size()));
    const int32_t node = ready[static_cast<size_t>(pick)];
    ready.erase(ready.begin() + pick);
    const Compute compute = graph.compute(node);
    order[static_cast<size_t>(work.stage_rank[static_cast<size_t>(compute.stage)])].push_back(compute);
    for (const ComputeEdge& edge : graph.successors(node)) {
      if (--waiting[static_cast<size_t>(edge.to)] == 0) ready.push_back(edge.to);
    }
  }
  return order;
}

TEST_F(RanksAsThreads, TrainTheSameInAnyProvenOrderAndWithoutAFlushBetweenRounds) {
  std::vector<RandomJob> jobs = every_method();
  std::erase_if(jobs, [](const RandomJob& job) { return job.adapter.method == AdapterMethod::diff_pruning; });
  const int64_t steps = jobs.front().steps;
  const std::vector<at::Tensor> expected = train_on_one(jobs, backbone, small_microbatches);
  PackingPolicy fused = small_microbatches;
  fused.sharing = Sharing::hybrid;
  fused.token_budget = 512;
  RankThreads ranks(backbone, even_layout(config, 4), 1);
  for (const auto& [policy, key] : {std::pair(small_microbatches, 1), {small_microbatches, 0}, {fused, 2}, {fused, 3}, {fused, 0}}) {
    Rounds together = rounds_of(jobs, config, policy, steps);
    const PipelineWork work = work_of(together.plans, ranks.layout(), one_unit, {8, 8});
    const ComputeOrder order = key > 0 ? random_order(work, static_cast<uint64_t>(key)) : lorapp(work);
    ranks.run(plan_in_order(together.plans, ranks.layout(), work, order), together.rounds);
    std::vector<at::Tensor> trained;
    for (size_t i = 0; i < jobs.size(); ++i) {
      for (size_t step = 0; step < static_cast<size_t>(steps); ++step) {
        const JobRound& round = together.rounds[step * jobs.size() + i];
        EXPECT_TRUE(round.stepped) << round.failure;
        trained.push_back(at::scalar_tensor(round.loss(), at::kDouble));
      }
      for (const at::Tensor& value : values_of(*together.adapters[i])) trained.push_back(value);
    }
    EXPECT_LE(largest_difference(trained, expected), 1e-10) << "order " << key << ", budget " << policy.token_budget;
  }
}

/// A message is its rows and, filled up to 64 bytes, 16 for each of its jobs. Per boundary there is one up for each microbatch, one down from the
/// stages above the lowest adapted one, and after a job's last step one, without rows, up from that stage.
SentMessages expected_messages(const Rounds& rounds, const PipelineLayout& layout, int64_t row_bytes) {
  const int64_t boundaries = layout.rank_count() - 1;
  std::vector<int64_t> above_lowest;  // boundaries, by job
  for (const auto& adapter : rounds.adapters) above_lowest.push_back(boundaries - layout.stage_of(adapter->lowest_layer()));
  SentMessages sent;
  for (const StepPlan& plan : rounds.plans) {
    for (const Microbatch& microbatch : plan.microbatches) {
      std::set<int32_t> jobs;
      for (const Atom& atom : microbatch.atoms) jobs.insert(atom.job);
      int64_t down = 0;
      for (const int32_t job : jobs) down = std::max(down, above_lowest[static_cast<size_t>(job)]);
      const int64_t record_bytes = (16 * static_cast<int64_t>(jobs.size()) + 63) / 64 * 64;
      sent += {boundaries + down, (boundaries + down) * (microbatch.token_count() * row_bytes + record_bytes)};
    }
  }
  for (const int64_t up : above_lowest) sent += {up, 64 * up};
  return sent;
}

TEST_F(RanksAsThreads, SendTheMessagesOfTheirListsAndNoOthers) {
  std::vector<RandomJob> jobs;
  for (uint64_t i = 0; i < 5; ++i) jobs.push_back(lora_job("job", i, 4, 0, {"all-linear"}, {60, 30, static_cast<int64_t>(10 + i)}));
  jobs.front().row_lengths = {600};  // a chain
  for (RandomJob& job : jobs) job.steps = 3;
  std::vector<RandomJob> with_upper_job = jobs;
  with_upper_job.back().adapter.layers_to_transform = {3};
  PackingPolicy fused = small_microbatches;
  fused.sharing = Sharing::hybrid;
  fused.token_budget = 512;
  for (const int32_t depth : {2, 4}) {
    RankThreads ranks(backbone, even_layout(config, depth), 1);
    for (const auto& [trained, policy] : {std::pair(jobs, small_microbatches), {jobs, fused}, {with_upper_job, small_microbatches}}) {
      Rounds together = rounds_of(trained, config, policy, 3);
      const RankPlan plan = plan_ranks(together.plans, ranks.layout(), one_unit, options_for(RankOrder::automatic, depth));
      const SentMessages expected = expected_messages(together, ranks.layout(), config.hidden_size * 8);
      ranks.run(plan, together.rounds);
      SentMessages all;
      for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
        const SentMessages& sent = ranks.times().ranks[rank].sent;
        const auto is_send = [](const Action& action) { return action.kind == ActionKind::send_activation || action.kind == ActionKind::send_error; };
        EXPECT_EQ(sent.count, std::ranges::count_if(plan.ranks[rank], is_send)) << "rank " << rank << " of " << depth;
        all += sent;
      }
      EXPECT_EQ(all.count, expected.count) << depth;
      EXPECT_EQ(all.bytes, expected.bytes) << depth;
    }
  }
}

/// mLoRA §3.2: what the last stage has just computed forward it computes backward before anything else.
TEST_F(RanksAsThreads, KeepLessOnTheLastStageWhereBackwardsGoFirst) {
  install_counting_allocator();
  std::vector<RandomJob> jobs;
  for (uint64_t i = 0; i < 4; ++i) jobs.push_back(lora_job("job", i, 4, 0, {"all-linear"}, {200}));
  RankThreads ranks(backbone, even_layout(config, 2), 1);
  const auto peak_of_last_stage = [&](bool backward_first) {
    Rounds rounds = rounds_of(jobs, config, small_microbatches, 2);
    const PipelineWork work = work_of(rounds.plans, ranks.layout(), one_unit, {8, 8});
    ranks.run(plan_in_order(rounds.plans, ranks.layout(), work, lorapp(work, {}, backward_first)), rounds.rounds);
    return ranks.times().ranks.at(1).peak_bytes;
  };
  const int64_t forward_first = peak_of_last_stage(false), backward_first = peak_of_last_stage(true);
  EXPECT_GT(backward_first, 0);
  EXPECT_LT(backward_first, forward_first);
}

TEST_F(RanksAsThreads, LeaveAJobAloneFromTheStepOnThatIsNotFinite) {
  // Two steps without a flush: the gradient of a job's first is not finite; the second, which would be, must not be made either.
  const std::vector<RandomJob> jobs{lora_job("sound", 1, 4, 0, {"all-linear"}, {30, 20}),
                                    lora_job("broken", 2, 4, 0, {"all-linear"}, {31})};
  RankThreads ranks(backbone, even_layout(config, 2), 1);
  Rounds together = rounds_of(jobs, config, small_microbatches, 2);
  together.adapters[1]->parameters().front().gradient.fill_(std::numeric_limits<double>::infinity());
  const std::vector<at::Tensor> before = values_of(*together.adapters[1]);
  ranks.run(plan_ranks(together.plans, ranks.layout(), one_unit, options_for(RankOrder::automatic, 2)), together.rounds);
  for (const size_t round : {0, 2}) EXPECT_TRUE(together.rounds[round].stepped) << together.rounds[round].failure;
  for (const size_t round : {1, 3}) {
    EXPECT_FALSE(together.rounds[round].stepped);
    EXPECT_NE(together.rounds[round].failure, "");
  }
  EXPECT_EQ(difference_in_bits(values_of(*together.adapters[1]), before), "");
  for (const Parameter& parameter : together.adapters[1]->parameters()) EXPECT_TRUE(parameter.gradient.eq(0).all().item<bool>());
}

TEST_F(RanksAsThreads, EvaluateAsOneRankDoes) {
  RankThreads ranks(backbone, even_layout(config, 2), 1);
  expect_evaluation_of_one_rank(ranks, backbone);
}

TEST_F(RanksAsThreads, ThatBreakOffHaveMadeEachStepEverywhereOrNowhere) {
  RankThreads ranks(backbone, even_layout(config, 2), 1);
  expect_steps_everywhere_or_nowhere(ranks, backbone, 1, 400);
}

/// An adapter whose steps cannot be made above the lowest stage.
class WithoutMemoryAbove : public Adapter {
 public:
  explicit WithoutMemoryAbove(std::unique_ptr<Adapter> whole) : Adapter(whole->model_config(), whole->setup()), whole_(std::move(whole)) {
    parameters_ = whole_->parameters();
    for (const AdaptedModule& module : setup().modules) place(module.layer, module.projection, whole_->at(module.layer, module.projection));
  }
  void refresh(LayerRange layers) override {
    if (layers.begin > 0) throw MemoryLimitExceeded("no room for a step");
    whole_->refresh(layers);
  }

 private:
  std::unique_ptr<Adapter> whole_;
};

TEST_F(RanksAsThreads, SayWhereAStepCannotBeMadeOnAllAndNotThatMemoryIsShort) {
  RankThreads ranks(backbone, even_layout(config, 2), 1);
  const std::vector<RandomJob> jobs{lora_job("a", 1, 4, 0, {"all-linear"}, {30, 20})};
  const auto run = [&](Rounds& rounds) {
    ranks.run(plan_ranks(rounds.plans, ranks.layout(), one_unit, options_for(RankOrder::automatic, 2)), rounds.rounds);
  };
  Rounds broken = rounds_of(jobs, config, small_microbatches, 1);
  broken.adapters.front() = std::make_unique<WithoutMemoryAbove>(std::move(broken.adapters.front()));
  broken.rounds.front().adapter = broken.adapters.front().get();
  try {
    run(broken);
    ADD_FAILURE() << "went on between two steps";
  } catch (const SystemError& error) {
    EXPECT_STREQ(error.what(), "a step that some ranks have made cannot be made on all: no room for a step");
  }
  Rounds sound = rounds_of(jobs, config, small_microbatches, 1);
  run(sound);
  EXPECT_TRUE(sound.rounds.front().stepped) << sound.rounds.front().failure;
}

}  // namespace
}  // namespace cotune
