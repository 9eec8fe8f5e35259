// Frozen weights that several processes keep slices of multiply, and train, as whole ones do, to the bit.
#include "engine/sharded_weights.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "engine/dealt_rounds.h"
#include "engine/memory_facts.h"
#include "engine/process_ranks.h"
#include "ops/memory.h"
#include "schedule/memory/weight_memory.h"

namespace cotune {
namespace {

using namespace testing;

std::vector<at::Tensor> random_weights(const std::vector<int64_t>& outputs, int64_t in, at::ScalarType compute, double scale = 1) {
  std::vector<at::Tensor> weights;
  for (const int64_t out : outputs) weights.push_back((at::randn({out, in}, at::kDouble) * scale).to(compute));
  return weights;
}

/// Calls `use` on a thread for each of so many holders of weights that `keep` keeps, after all have joined.
template <typename Keep, typename Use>
void on_holders(int32_t count, Keep keep, Use use) {
  std::vector<std::unique_ptr<Communicator>> groups = thread_communicators(count);
  std::vector<int32_t> ranks;
  for (int32_t holder = 0; holder < count; ++holder) ranks.push_back(holder);
  std::vector<std::shared_ptr<ShardedWeights>> all;
  for (int32_t holder = 0; holder < count; ++holder) {
    all.push_back(std::make_shared<ShardedWeights>(WeightHolder{holder, count}));
    keep(*all.back(), holder);
  }
  {
    std::vector<std::jthread> threads;
    for (int32_t holder = 0; holder < count; ++holder) {
      threads.emplace_back([&, holder] {
        ShardedWeights& weights = *all[static_cast<size_t>(holder)];
        weights.join(std::move(groups[static_cast<size_t>(holder)]), ranks, nullptr);
        use(weights, holder);
      });
    }
  }
  for (const auto& weights : all) weights->leave();
}

TEST(ShardedWeights, MultiplyAsWholeOnesDoToTheBit) {
  for (const at::ScalarType compute : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const int32_t count : {2, 3, 5}) {
      std::vector<std::shared_ptr<const FrozenProduct>> whole;
      const std::vector<at::Tensor> bias{at::randn({64}, at::kDouble).to(compute), at::randn({96}, at::kDouble).to(compute)};
      whole.push_back(make_frozen_product(random_weights({64, 96}, 96, compute), bias));    // packed, where there are kernels
      whole.push_back(make_frozen_product(random_weights({33}, 17, compute, 1e-3), {}));    // never packed
      whole.push_back(make_frozen_product(random_weights({32}, 32, compute, 1e4), {}));
      std::vector<std::vector<std::shared_ptr<const FrozenProduct>>> sliced(static_cast<size_t>(count));
      std::vector<int64_t> kept(static_cast<size_t>(count));
      const auto keep = [&](ShardedWeights& weights, int32_t holder) {
        for (const auto& product : whole) sliced[static_cast<size_t>(holder)].push_back(weights.keep(*product, true));
        kept[static_cast<size_t>(holder)] = weights.bytes();
      };
      on_holders(count, keep, [&](ShardedWeights&, int32_t holder) {
        const auto& own = sliced[static_cast<size_t>(holder)];
        for (int pass = 0; pass < 3; ++pass) {
          for (size_t i = 0; i < own.size(); ++i) {  // each in its own order, as often as it likes
            const size_t at = holder % 2 == 0 ? i : own.size() - 1 - i;
            const at::Tensor x = at::linspace(-1, 1, 7 * whole[at]->in_features(), at::kDouble).view({7, -1}).to(compute);
            const at::Tensor dy = at::linspace(-1, 2, 7 * whole[at]->out_features(), at::kDouble).view({7, -1}).to(compute);
            EXPECT_TRUE(own[at]->forward(x, {}).equal(whole[at]->forward(x, {}))) << compute << ", weight " << at;
            EXPECT_TRUE(own[at]->backward(dy, {}).equal(whole[at]->backward(dy, {}))) << compute << ", weight " << at;
          }
        }
      });
      int64_t bytes = 0, biases = 0, together = 0;
      for (const auto& product : whole) bytes += product->bytes();
      for (const at::Tensor& each : bias) biases += static_cast<int64_t>(each.nbytes());
      for (const int64_t each : kept) together += each;
      EXPECT_EQ(together, bytes - biases) << "each byte is kept once";
    }
  }
}

TEST(ShardedWeights, LookUpTheRowsOfTheEmbedding) {
  const at::Tensor embedding = at::randn({37, 8});
  const at::Tensor tokens = at::tensor({36, 0, 5, 5, 18, 19, 12, 36}, at::kLong), none = at::empty({0}, at::kLong);
  on_holders(
      3, [&](ShardedWeights& weights, int32_t) { weights.keep_rows(embedding); },
      [&](ShardedWeights& weights, int32_t) {
        EXPECT_TRUE(weights.rows(tokens).equal(embedding.index_select(0, tokens)));
        EXPECT_TRUE(weights.rows(none).equal(embedding.index_select(0, none)));
      });
}

TEST(ShardedWeights, ThatAHolderHasTakenAwayEndTheOthers) {
  const auto whole = make_frozen_product(random_weights({64}, 64, at::kFloat), {});
  std::vector<std::shared_ptr<const FrozenProduct>> sliced(2);
  on_holders(
      2, [&](ShardedWeights& weights, int32_t holder) { sliced[static_cast<size_t>(holder)] = weights.keep(*whole, true); },
      [&](ShardedWeights& weights, int32_t holder) {
        if (holder == 1) return weights.leave();
        const at::Tensor x = at::ones({4, 64});
        EXPECT_THROW(
            while (true) {
              sliced.front()->forward(x, {});
              sliced.front()->backward(x, {});
            },
            CommunicationEnded);
      });
}

std::vector<PipelineLayout> sharded(std::vector<PipelineLayout> layouts) {
  for (PipelineLayout& layout : layouts) layout.shards_weights = true;
  return layouts;
}

std::vector<at::Tensor> train_on(const std::vector<PipelineLayout>& layouts, const std::vector<RandomJob>& jobs, const ModelConfig& config,
                                 at::ScalarType compute, bool recompute) {
  PackingPolicy policy = small_microbatches();
  policy.recompute = recompute;
  Processes processes(config, layouts, {}, compute);
  RankLeader& leader = processes.leader();
  const RunRound run = [&leader](Round& round) {
    const auto plans = deal_at_random({&round.plan, 1}, leader, 5);
    ASSERT_TRUE(plans.has_value());
    leader.run(*plans, round.rounds);
  };
  const std::vector<at::Tensor> trained = train(jobs, *random_backbone(config, compute, at::kCPU), policy, run, processes.events());
  for (const std::string& why : processes.end()) EXPECT_EQ(why, "");
  return trained;
}

struct Deployment {
  std::vector<PipelineLayout> layouts;
  at::ScalarType compute = at::kDouble;
  bool tied = false, recompute = false;
};

class EveryDeployment : public ::testing::TestWithParam<int> {
 protected:
  static Deployment deployment(const ModelConfig& config, int number) {
    const auto layout = [&](int32_t stages, int64_t tensor = 1, int32_t chunks = 1) { return even_layout(config, stages, chunks, tensor); };
    switch (number) {
      case 0: return {.layouts = {layout(1), layout(1)}};
      case 1: return {.layouts = {layout(1), layout(1), layout(1)}, .compute = at::kBFloat16, .tied = true};
      case 2: return {.layouts = {layout(2), layout(1), layout(2)}, .recompute = true};
      case 3: return {.layouts = {layout(1, 2), layout(1, 2)}, .compute = at::kBFloat16};
      default: return {.layouts = {layout(2, 1, 2), layout(2, 1, 2)}, .tied = true};
    }
  }
};

TEST_P(EveryDeployment, TrainsTheBitsOfWholeWeightsInSlices) {
  ModelConfig config = eight_heads(4, 2);
  const Deployment one = deployment(config, GetParam());
  config.tied_embeddings = one.tied;
  const std::vector<at::Tensor> whole = train_on(one.layouts, every_method(), config, one.compute, one.recompute);
  const std::vector<at::Tensor> in_slices = train_on(sharded(one.layouts), every_method(), config, one.compute, one.recompute);
  ASSERT_EQ(whole.size(), in_slices.size());
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(at::equal(whole[i], in_slices[i])) << "value " << i;
}

INSTANTIATE_TEST_SUITE_P(ReplicasThatShardWeights, EveryDeployment, ::testing::Range(0, 5));

TEST(ReplicasThatShardWeights, EvaluateAsOneRankDoes) {
  const ModelConfig config = eight_heads(4, 2);
  const auto whole = random_backbone(config, at::kDouble, at::kCPU);
  Processes processes(config, sharded({even_layout(config, 2), even_layout(config, 2)}));
  expect_evaluation_of_one_rank(processes.leader(), whole, [&](const StepPlan& round) {
    ReplicaPlans plans = *deal_at_random({&round, 1}, processes.leader(), 11);
    plans.exchanges.clear();
    return plans;
  });
  for (const std::string& why : processes.end()) EXPECT_EQ(why, "");
}

TEST(ReplicasThatShardWeights, GoOnAfterRoundsThatBreakOff) {
  const ModelConfig config = eight_heads(4, 2);
  Processes processes(config, sharded({even_layout(config, 2), even_layout(config, 2)}));
  expect_dealt_steps_everywhere_or_nowhere(processes.leader(), random_backbone(config, at::kDouble, at::kCPU), 0);
}

TEST(ReplicasThatShardWeights, KeepHalfOfEveryLayerAndWhatIsPredicted) {
  install_counting_allocator();
  for (const bool tied : {true, false}) {
    ModelConfig config = kernel_friendly_config(12);
    config.tied_embeddings = tied;
    const PipelineLayout layout = even_layout(config, 1);
    const std::vector<PipelineLayout> two{layout, layout}, in_slices = sharded(two);
    for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
      const auto whole = backbone_of_rank(config, two, 0, compute);
      const int64_t rotary = static_cast<int64_t>(whole->rotary().cosine.nbytes() + whole->rotary().sine.nbytes());
      MemoryFacts facts = memory_facts(compute, at::kCPU);
      facts.weight_copies = 2;
      facts.process_stages = layout.stages;
      for (const int32_t rank : {0, 1}) {
        const int64_t before = memory_usage()[MemoryKind::weights];
        const auto own = backbone_of_rank(config, in_slices, rank, compute);
        const ShardedWeights& weights = *own->sharded_weights();
        EXPECT_EQ(memory_usage()[MemoryKind::weights] - before, own->weight_bytes() - weights.buffer_bytes());
        EXPECT_EQ(own->whole_weight_bytes(), whole->weight_bytes());
        EXPECT_NEAR(static_cast<double>(weights.bytes()), static_cast<double>(weights.whole_bytes()) / 2, 64.0 * 12 * 8);
        EXPECT_GT(weights.whole_bytes(), whole->weight_bytes() - rotary - whole->head().bytes() - 12 * (3 * 96 + 2 * 96) * 4);
        // Answers with rows of a divided embedding lie beside the weights.
        const int64_t answers = tied ? 0 : embedding_rows_at_once * config.hidden_size * facts.element_size;
        const int64_t predicted = predict_weight_bytes(config, facts);
        EXPECT_GE(predicted, own->weight_bytes() - rotary);
        EXPECT_LE(predicted, (own->weight_bytes() - rotary) * 102 / 100 + answers);
      }
    }
  }
}

TEST(ReplicasThatShardWeights, HoldNoMoreThanTwoGatheredWeightsAtATime) {
  install_counting_allocator();
  const ModelConfig config = kernel_friendly_config(6);
  const std::vector<PipelineLayout> layouts = sharded({even_layout(config, 1), even_layout(config, 1)});
  int64_t slices = 0, buffers = 0;
  for (const int32_t rank : {0, 1}) {
    const auto own = backbone_of_rank(config, layouts, rank, at::kFloat);
    buffers = own->sharded_weights()->buffer_bytes();
    slices += own->weight_bytes() - buffers;
  }
  const int64_t before = memory_usage()[MemoryKind::weights];
  Processes processes(config, layouts, {}, at::kFloat);
  RankLeader& leader = processes.leader();
  int64_t most = 0, count = 0;
  leader.observe([&](int32_t, const Operator&) {
    most = std::max(most, memory_usage()[MemoryKind::weights] - before);
    ++count;
  });
  const RunRound run = [&leader](Round& round) { leader.run(*deal_at_random({&round.plan, 1}, leader, 2), round.rounds); };
  train({lora_job("a", 1, 4, 0, {"all-linear"}, {30, 20, 60}), bottleneck_job("b", 2, 8, Activation::relu, {9, 33})},
        *random_backbone(config, at::kFloat, at::kCPU), small_microbatches(), run, processes.events());
  EXPECT_GT(count, 100);
  EXPECT_GT(most, slices);
  const int64_t whole = random_backbone(config, at::kFloat, at::kCPU)->weight_bytes();
  // The whole one is the test's own. A transfer lets go of its weight a moment after it has ended: one more a rank.
  EXPECT_LE(most, slices + whole + 3 * buffers);
}

struct Held {
  size_t threads = 0, descriptors = 0;
};

size_t entries(const char* folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

/// Threads that have ended may be seen for a moment.
Held held_at_most(const Held& limit) {
  Held held;
  for (int i = 0; i < 1000; ++i) {
    held = {entries("/proc/self/task"), entries("/proc/self/fd")};
    if (held.threads <= limit.threads && held.descriptors <= limit.descriptors) break;
    std::this_thread::yield();
  }
  return held;
}

TEST(ReplicasThatShardWeights, LeaveNoThreadsAndNoDescriptors) {
  const ModelConfig config = eight_heads(2);
  const std::vector<RandomJob> jobs{lora_job("a", 1, 4, 0, {"all-linear"}, {30, 20})};
  const auto train_once = [&] { train_on(sharded({even_layout(config, 1), even_layout(config, 1)}), jobs, config, at::kDouble, false); };
  train_once();
  const Held before{entries("/proc/self/task"), entries("/proc/self/fd")};
  for (int i = 0; i < 5; ++i) train_once();
  const Held after = held_at_most(before);
  EXPECT_LE(after.threads, before.threads);
  EXPECT_LE(after.descriptors, before.descriptors);
}

}  // namespace
}  // namespace cotune
