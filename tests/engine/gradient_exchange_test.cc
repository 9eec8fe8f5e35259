// Gradients exchanged slice by slice are, to the bit, those of one flat buffer over all replicas.
#include "engine/gradient_exchange.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "adapter/adapter_shard.h"
#include "engine/rank_rounds.h"
#include "ops/memory.h"
#include "schedule/random_batches.h"

namespace cotune {
namespace {

using namespace testing;

class ExchangedGradients : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { install_counting_allocator(); }

  static ModelConfig eight_heads() {
    ModelConfig config = kernel_friendly_config(4);
    config.head_count = 8;
    config.kv_head_count = 2;
    config.head_dim = 16;
    return config;
  }

  /// A job's life once it has selected what it trains.
  std::unique_ptr<JobLife> life_of(const RandomJob& job) {
    auto life = std::make_unique<JobLife>(0, job, *backbone);
    Interpreter interpreter(backbone);
    std::vector<std::unique_ptr<JobLife>> lives;
    lives.push_back(std::move(life));
    while (lives.front()->adapter().finished_selection_passes() < lives.front()->adapter().selection_passes()) {
      Round round = next_round(lives, small_microbatches(), config);
      interpreter.run(round.plan, round.rounds);
      lives.front()->finish_round(round.rounds.front());
    }
    return std::move(lives.front());
  }

  const ModelConfig config = eight_heads();
  const std::shared_ptr<const Backbone> backbone = random_backbone(config, at::kDouble, at::kCPU);
};

/// One rank of a random layout.
struct ExchangingRank {
  HeldAdapter held;
  std::unique_ptr<Adapter> shard;
  bool has_head = false;
};

std::vector<ExchangingRank> random_ranks(Dice& dice, const Adapter& whole, int64_t layer_count) {
  std::vector<ExchangingRank> ranks;
  const auto replicas = static_cast<int32_t>(dice.between(2, 3));
  for (int32_t replica = 0; replica < replicas; ++replica) {
    const int64_t stages = dice.between(1, 2), degree = std::array{1, 2, 4}[static_cast<size_t>(dice.between(0, 2))];
    const int64_t cut = dice.between(1, layer_count - 1);
    for (int64_t stage = 0; stage < stages; ++stage) {
      const LayerRange layers{stage == 0 ? 0 : cut, stage + 1 == stages ? layer_count : cut};
      for (int64_t part = 0; part < degree; ++part) {
        ExchangingRank& rank = ranks.emplace_back();
        rank.shard = make_adapter_shard(whole, {part, degree});
        rank.held = {.replica = replica, .layers = {layers}, .parts = parts_of(*rank.shard, {{layers}})};
        rank.has_head = stage + 1 == stages && part == 0;
      }
    }
  }
  return ranks;
}

TEST_F(ExchangedGradients, AreThoseOfAFlatBufferToTheBitOnRandomLayouts) {
  std::vector<RandomJob> jobs{lora_job("lora", 1, 8, 0, {"all-linear"}, {12, 40}), bottleneck_job("bottleneck", 2, 16, Activation::gelu, {25}),
                              diff_pruning_job("sparse", 3, 0.05, {33, 18}), lora_job("upper", 5, 4, 0, {"v_proj", "o_proj"}, {51})};
  jobs[3].adapter.layers_to_transform = {3};
  for (size_t j = 0; j < jobs.size(); ++j) {
    const std::unique_ptr<JobLife> life = life_of(jobs[j]);
    const Adapter& whole = life->adapter();
    for (uint64_t key = 0; key < 5; ++key) {
      Dice dice(100 * j + key);
      std::vector<ExchangingRank> ranks = random_ranks(dice, whole, config.layer_count);
      // Every replica's gradient, whole; its ranks have their parts of it.
      at::manual_seed(key);
      std::vector<at::Tensor> sums(whole.parameters().size());
      std::vector<std::vector<at::Tensor>> of_replica(static_cast<size_t>(ranks.back().held.replica) + 1);
      for (std::vector<at::Tensor>& gradients : of_replica) {
        for (size_t i = 0; i < sums.size(); ++i) {
          gradients.push_back(at::randn_like(whole.parameters()[i].value));
          sums[i] = sums[i].defined() ? sums[i] + gradients.back() : gradients.back();
        }
      }
      std::vector<HeldAdapter> held;
      for (ExchangingRank& rank : ranks) {
        held.push_back(rank.held);
        for (size_t i = 0; i < sums.size(); ++i) {
          Parameter& own = rank.shard->parameters()[i];
          own.gradient.copy_(part_at(of_replica[static_cast<size_t>(rank.held.replica)][i], own.place, own.gradient));
        }
      }
      const JobExchange exchange = exchange_of(whole, held);
      std::vector<std::unique_ptr<Communicator>> communicators = thread_communicators(static_cast<int32_t>(ranks.size()));
      std::vector<at::Tensor> records(ranks.size());
      std::vector<int64_t> sent(ranks.size(), 0);
      std::vector<std::vector<SimulatedSpan>> spans(ranks.size());
      std::vector<MemoryAccount> accounts(ranks.size());
      {
        std::vector<std::jthread> threads;
        for (const int32_t index : exchange.ranks) {
          threads.emplace_back([&, rank = static_cast<size_t>(index)] {
            const MemoryAccount::Scope memory(accounts[rank]);
            const JobStep step{0, 7};
            GradientExchange own(*communicators[rank], {{step, &exchange, ranks[rank].shard.get()}}, {});
            own.post(step, at::scalar_tensor(ranks[rank].has_head ? 1.5 : 0, at::kDouble), 4);
            records[rank] = own.wait(step);
            sent[rank] = own.sent_bytes();
            spans[rank] = own.spans();
          });
        }
      }
      double squares = 0;
      for (const at::Tensor& sum : sums) squares += sum.square().sum().item<double>();
      int64_t all_sent = 0;
      for (const int32_t index : exchange.ranks) {
        const auto rank = static_cast<size_t>(index);
        all_sent += sent[rank];
        ASSERT_EQ(spans[rank].size(), 1U);
        EXPECT_EQ(spans[rank][0].action, 4U);
        EXPECT_LE(spans[rank][0].start_s, spans[rank][0].end_s);
        EXPECT_GE(2 * accounts[rank].peak_bytes(), sent[rank]) << "slices to their owners, then sums: copies, on the rank's account";
        EXPECT_NEAR(records[rank][0].item<double>(), squares, 1e-12 * squares);
        EXPECT_EQ(records[rank][1].item<double>(), 1.5 * static_cast<double>(of_replica.size()));
        EXPECT_TRUE(at::equal(records[rank], records[static_cast<size_t>(exchange.ranks.front())]));
        for (size_t i = 0; i < sums.size(); ++i) {
          const Parameter& own = ranks[rank].shard->parameters()[i];
          if (!ranks[rank].held.layers.front().contains(own.layer)) continue;
          EXPECT_TRUE(at::equal(own.gradient, part_at(sums[i], own.place, own.gradient))) << own.name << ", key " << key;
        }
      }
      EXPECT_EQ(all_sent, values_moved(exchange.slices) * 8);
    }
  }
}

}  // namespace
}  // namespace cotune
