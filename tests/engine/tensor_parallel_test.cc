// Ranks that divide the layers of a stage train what one rank trains.
#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <numeric>

#include "engine/memory_facts.h"
#include "engine/random_job.h"
#include "engine/rank_rounds.h"
#include "engine/rank_threads.h"
#include "ops/memory.h"
#include "schedule/adapter_shape.h"
#include "schedule/memory/resident_memory.h"

namespace cotune {
namespace {

using namespace testing;

ModelConfig untied_nine_heads() {
  ModelConfig config = nine_heads(2);
  config.family = "llama";
  config.qkv_bias = config.tied_embeddings = false;
  return config;
}

/// Those of Qwen2.5-0.5B, with its biases and its tied head.
ModelConfig fourteen_heads() {
  ModelConfig config = kernel_friendly_config(2);
  config.head_count = 14;
  config.kv_head_count = 2;
  config.head_dim = 16;
  return config;
}

/// `stages` stages of about as many layers each, each divided among `degree` ranks.
StageCost by_tokens(const StepPlan& plan, size_t microbatch, size_t) {
  const auto tokens = static_cast<double>(plan.microbatches[microbatch].token_count());
  return {.forward_s = tokens, .backward_s = 2 * tokens, .kept_bytes = static_cast<int64_t>(tokens)};
}

RankPlan plan_for(const StepPlan& round, const PipelineLayout& layout) {
  return plan_ranks({round}, layout, by_tokens, {.order = RankOrder::automatic, .cluster = {}, .bytes_per_token = {8, 8}, .most_in_flight = layout.rank_count()});
}

/// Every method at every projection, chains under a budget of 256, and jobs whose lowest adapted operator is not the layer's first.
/// Adam's epsilon is far above what sums in another order are apart: steps do not magnify that.
std::vector<RandomJob> every_method(const ModelConfig& config) {
  std::vector<RandomJob> jobs{lora_job("lora", 1, 8, 0.3, {"all-linear"}, {12, 40, 31}),
                              bottleneck_job("bottleneck", 2, 16, Activation::gelu, {25, 7, 90}),
                              diff_pruning_job("sparse", 3, 0.05, {33, 18}),
                              lora_job("long", 4, 4, 0, {"k_proj", "down_proj"}, {270, 20}),
                              lora_job("upper", 5, 4, 0, {"v_proj", "o_proj"}, {51}),
                              lora_job("lower", 6, 4, 0.1, {"gate_proj", "down_proj"}, {44, 13})};
  jobs[4].adapter.layers_to_transform = {config.layer_count - 1};
  jobs[5].adapter.layers_to_transform = {1};
  for (RandomJob& job : jobs) {
    job.steps = 2;
    job.optimizer.max_grad_norm = 0.05;
    job.optimizer.weight_decay = 0.1;
    job.optimizer.epsilon = 1e-5;
  }
  jobs[3].optimizer.kind = OptimizerKind::sgd;
  jobs[3].optimizer.momentum = 0.9;
  return jobs;
}

/// The lives of jobs, round by round, on one rank or on several.
class Lives {
 public:
  Lives(const std::vector<RandomJob>& jobs, const Backbone& backbone) : config_(backbone.config()) {
    for (const RandomJob& job : jobs) {
      lives_.push_back(std::make_unique<JobLife>(static_cast<int32_t>(lives_.size()), job, backbone));
    }
  }

  /// Losses and values at the end, one flat list. run: a plan's rounds. ranks: to be told of adapters, or nullptr.
  std::vector<at::Tensor> train(PackingPolicy policy, RankThreads* ranks,
                                const std::function<void(const StepPlan&, std::span<JobRound>)>& run) {
    policy.layer_count = config_.layer_count;
    for (size_t i = 0; ranks != nullptr && i < lives_.size(); ++i) ranks->share(static_cast<int32_t>(i), lives_[i]->adapter());
    while (true) {
      std::vector<JobRound> rounds;
      std::vector<BatchShape> shapes;
      for (const auto& life : lives_) {
        if (life->done()) continue;
        rounds.push_back(life->next_round());
        shapes.push_back(rounds.back().batch->shape(rounds.back().job, life->adapter().lowest_layer()));
      }
      if (rounds.empty()) break;
      run(plan_step(shapes, policy), rounds);
      for (const JobRound& round : rounds) {
        JobLife& life = *lives_[static_cast<size_t>(round.job)];
        EXPECT_EQ(round.failure, "");
        const bool chooses = life.adapter().parameters().empty();
        life.finish_round(round);
        if (ranks != nullptr && chooses) ranks->share(round.job, life.adapter());
      }
    }
    std::vector<at::Tensor> values;
    for (size_t i = 0; i < lives_.size(); ++i) {
      JobLife& life = *lives_[i];
      if (ranks != nullptr) ranks->gather(static_cast<int32_t>(i), life.adapter());
      for (const double loss : life.losses()) values.push_back(at::scalar_tensor(loss, at::kDouble));
      for (const at::Tensor& value : values_of(life.adapter())) values.push_back(value);
      for (const Parameter& parameter : life.adapter().parameters()) {
        for (const at::Tensor& moment : {parameter.first_moment, parameter.second_moment}) {
          if (moment.defined()) values.push_back(moment.clone());
        }
      }
    }
    return values;
  }

 private:
  ModelConfig config_;
  std::vector<std::unique_ptr<JobLife>> lives_;
};

const PackingPolicy small_microbatches{.sharing = Sharing::temporal, .token_budget = 256};

std::vector<at::Tensor> train_on_one(const std::vector<RandomJob>& jobs, const ModelConfig& config) {
  const std::shared_ptr<const Backbone> whole = random_backbone(config, at::kDouble, at::kCPU);
  Interpreter interpreter(whole);
  return Lives(jobs, *whole).train(small_microbatches, nullptr, [&](const StepPlan& plan, std::span<JobRound> rounds) {
    interpreter.run(plan, rounds);
  });
}

void expect_same(const std::vector<at::Tensor>& trained, const std::vector<at::Tensor>& expected, const std::string& what) {
  ASSERT_EQ(trained.size(), expected.size()) << what;
  EXPECT_LE(largest_relative_difference(trained, expected), 1e-10) << what;
}

void expect_same_on(const ModelConfig& config, const std::vector<RandomJob>& jobs,
                    const std::vector<std::tuple<int32_t, int64_t, bool>>& layouts) {
  const std::vector<at::Tensor> expected = train_on_one(jobs, config);
  for (const auto& [stages, degree, recompute] : layouts) {
    const auto parts = divided_parts(config, degree);
    RankThreads ranks(parts, even_layout(config, stages, 1, degree), 1);
    PackingPolicy policy = small_microbatches;
    policy.recompute = recompute;
    const auto trained = Lives(jobs, *parts.front()).train(policy, &ranks, [&](const StepPlan& plan, std::span<JobRound> rounds) {
      ranks.run(plan_for(plan, ranks.layout()), rounds);
    });
    expect_same(trained, expected, fmt::format("pp={},tp={}, recomputed: {}", stages, degree, recompute));
  }
}

TEST(TensorParallelRanks, TrainTheAdaptersOfOneRank) {
  const ModelConfig config = eight_heads(3);
  expect_same_on(config, every_method(config), {{1, 2, false}, {2, 2, true}});
}

TEST(TensorParallelRanks, OfFourStagesTrainTheAdaptersOfOneRank) {
  const ModelConfig config = eight_heads(4);
  expect_same_on(config, every_method(config), {{4, 2, false}});
}

TEST(TensorParallelRanks, OfFourDivideAsManyKvHeads) {
  std::vector<RandomJob> jobs = every_method(eight_heads(2));
  jobs.resize(4);
  expect_same_on(eight_heads(2), jobs, {{1, 4, false}});
}

TEST(TensorParallelRanks, OfFourShareTwoKvHeads) {
  const ModelConfig config = eight_heads(2, 2);
  std::vector<RandomJob> jobs = every_method(config);
  jobs.resize(4);
  expect_same_on(config, jobs, {{1, 4, false}});
}

TEST(TensorParallelRanks, OfThreeDivideNineHeads) {
  std::vector<RandomJob> jobs = every_method(untied_nine_heads());
  jobs.resize(4);
  expect_same_on(untied_nine_heads(), jobs, {{1, 3, false}});
}

TEST(TensorParallelRanks, OfTwoDivideFourteenHeadsWithBiases) {
  std::vector<RandomJob> jobs = every_method(fourteen_heads());
  jobs.resize(3);
  expect_same_on(fourteen_heads(), jobs, {{1, 2, false}});
}

/// Runs one round of these jobs and says how often each rank took part in an all-reduce. Diff pruning has chosen its entries already,
/// but in a round that selects.
std::vector<int64_t> collectives_of(const std::vector<RandomJob>& jobs, RankThreads& ranks, const Backbone& part, RoundPurpose purpose) {
  std::vector<std::unique_ptr<Adapter>> adapters;
  std::vector<Batch> batches;
  std::vector<JobRound> rounds;
  std::vector<BatchShape> shapes;
  for (const RandomJob& job : jobs) batches.push_back(job.batch(0, part.config().vocabulary_size));
  for (size_t i = 0; i < jobs.size(); ++i) {
    adapters.push_back(jobs[i].make_adapter(part.config(), at::kDouble, at::kCPU));
    if (purpose != RoundPurpose::select && adapters[i]->selection_passes() > 0) {
      Interpreter alone(random_backbone(part.config(), at::kDouble, at::kCPU));
      select_alone(alone, jobs[i], *adapters[i]);
    }
    ranks.share(static_cast<int32_t>(i), *adapters.back());
    rounds.push_back({.job = static_cast<int32_t>(i), .adapter = adapters.back().get(), .batch = &batches[i], .purpose = purpose});
    shapes.push_back(batches[i].shape(static_cast<int32_t>(i), adapters.back()->lowest_layer()));
  }
  const StepPlan plan = plan_step(shapes, {.sharing = Sharing::hybrid, .token_budget = 1024, .layer_count = part.config().layer_count});
  EXPECT_EQ(plan.microbatches.size(), 1u);
  ranks.run(plan_for(plan, ranks.layout()), rounds);
  for (size_t i = 0; i < jobs.size(); ++i) ranks.forget(static_cast<int32_t>(i));
  return collectives_by_rank(ranks.times());
}

TEST(TensorParallelRanks, ReduceOncePerCutOfTheModelAndOncePerJobStep) {
  const ModelConfig config = eight_heads(2);
  const auto parts = divided_parts(config, 2);
  RankThreads one_stage(parts, even_layout(config, 1, 1, 2), 1), two_stages(parts, even_layout(config, 2, 1, 2), 1);
  const RandomJob lora = lora_job("lora", 1, 4, 0.1, {"all-linear"}, {30}), other = lora_job("other", 2, 8, 0, {"all-linear"}, {40});
  const RandomJob bottleneck = bottleneck_job("bottleneck", 3, 8, Activation::relu, {20}), sparse = diff_pruning_job("sparse", 4, 0.05, {25});
  const int64_t layers = config.layer_count;
  // The embedding, two in each layer each way but above the lowest adapter's product, two of the head.
  const int64_t microbatch = 1 + 2 * layers + 2 * layers - 1 + 2;
  const auto expect = [&](RankThreads& ranks, const std::vector<RandomJob>& jobs, const std::vector<int64_t>& expected) {
    EXPECT_EQ(collectives_of(jobs, ranks, *parts.front(), RoundPurpose::train), expected) << jobs.front().name << ", " << jobs.size() << " jobs";
  };
  // Of a job step: its whole parts, where it has some that are summands, and Σ g².
  expect(one_stage, {lora}, {microbatch + 2, microbatch + 2});
  expect(one_stage, {lora, other}, {microbatch + 4, microbatch + 4});
  expect(one_stage, {bottleneck}, {microbatch + 1, microbatch + 1});
  expect(one_stage, {sparse}, {microbatch + 1, microbatch + 1});
  expect(one_stage, {lora, other, bottleneck}, {microbatch + 5, microbatch + 5});
  expect(one_stage, {lora, other, bottleneck, sparse}, {microbatch + 6, microbatch + 6});
  const int64_t below = 1 + 2 * layers - 1, above = 2 * layers + 2;
  expect(two_stages, {lora, other}, {below + 4, below + 4, above + 4, above + 4});
  expect(two_stages, {lora, bottleneck, sparse}, {below + 4, below + 4, above + 4, above + 4});
  // What adapters compute within a microbatch takes part in the model's own.
  const int64_t forward = 1 + 2 * layers + 1;
  for (const std::vector<RandomJob>& jobs : {std::vector{lora}, {bottleneck}, {sparse}, {lora, other, bottleneck, sparse}}) {
    EXPECT_EQ(collectives_of(jobs, one_stage, *parts.front(), RoundPurpose::evaluate), (std::vector<int64_t>{forward, forward})) << jobs.front().name;
  }
}

/// A chunk of the head holds 384 rows by the smaller share of this vocabulary, and 320 by the larger.
TEST(TensorParallelRanks, OfUnequalSharesOfTheVocabularyScoreChunksOfEqualRows) {
  ModelConfig config = eight_heads(1);
  config.vocabulary_size = 32769;
  const std::vector<RandomJob> jobs{lora_job("long", 1, 4, 0, {"q_proj", "down_proj"}, {300, 300, 300})};
  const int64_t labelled = jobs.front().batch(0, config.vocabulary_size).labelled_count();
  ASSERT_GT(labelled, 384);
  ASSERT_LE(labelled, 640);
  const std::vector<at::Tensor> expected = train_on_one(jobs, config);
  const auto parts = divided_parts(config, 2);
  RankThreads ranks(parts, even_layout(config, 1, 1, 2), 1);
  const PackingPolicy one_microbatch{.sharing = Sharing::temporal, .token_budget = 1024};
  const auto trained = Lives(jobs, *parts.front()).train(one_microbatch, &ranks, [&](const StepPlan& plan, std::span<JobRound> rounds) {
    EXPECT_EQ(plan.microbatches.size(), 1u);
    ranks.run(plan_for(plan, ranks.layout()), rounds);
  });
  expect_same(trained, expected, "two chunks");
  const auto collectives = [&](std::vector<int64_t> row_lengths, RoundPurpose purpose) {
    return collectives_of({lora_job("rows", 1, 4, 0, {"all-linear"}, std::move(row_lengths))}, ranks, *parts.front(), purpose);
  };
  for (const RoundPurpose purpose : {RoundPurpose::train, RoundPurpose::evaluate}) {
    const int64_t of_one_chunk = collectives({300}, purpose).front();
    EXPECT_EQ(collectives({300, 300, 300}, purpose), (std::vector<int64_t>{of_one_chunk + 1, of_one_chunk + 1}));
  }
}

TEST(TensorParallelRanks, EvaluateAsOneRankDoes) {
  const ModelConfig config = eight_heads(2);
  const std::vector<RandomJob> jobs = every_method(config);
  const std::shared_ptr<const Backbone> whole = random_backbone(config, at::kDouble, at::kCPU);
  RankThreads ranks(divided_parts(config, 2), even_layout(config, 2, 1, 2), 1);
  Interpreter alone(whole);
  std::vector<std::unique_ptr<Adapter>> adapters;
  std::vector<Batch> batches;
  std::vector<JobRound> rounds;
  std::vector<BatchShape> shapes;
  for (const RandomJob& job : jobs) batches.push_back(job.batch(0, config.vocabulary_size));
  for (size_t i = 0; i < jobs.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    adapters.push_back(jobs[i].make_adapter(config, at::kDouble, at::kCPU));
    if (jobs[i].adapter.method == AdapterMethod::diff_pruning) select_alone(alone, jobs[i], *adapters.back());
    randomise(*adapters.back(), jobs[i].seed, 0.05);
    ranks.share(id, *adapters.back());
    rounds.push_back({.job = id, .adapter = adapters[i].get(), .batch = &batches[i], .purpose = RoundPurpose::evaluate});
    shapes.push_back(batches[i].shape(id, 0));
  }
  rounds.back().adapter = nullptr;  // the model without an adapter
  std::vector<JobRound> expected = rounds;
  PackingPolicy policy = small_microbatches;
  policy.layer_count = config.layer_count;
  const StepPlan plan = plan_step(shapes, policy);
  alone.run(plan, expected);
  ranks.run(plan_for(plan, ranks.layout()), rounds);
  for (size_t i = 0; i < jobs.size(); ++i) expect_equal_evaluation(rounds[i], expected[i]);
}

/// Thrown on a rank in the middle of a round.
class Trouble : public std::exception {};

TEST(TensorParallelRanks, ThatBreakOffHaveMadeEachStepEverywhereOrNowhere) {
  const ModelConfig config = eight_heads(2);
  std::vector<RandomJob> jobs{lora_job("a", 1, 4, 0, {"all-linear"}, {30, 20}), lora_job("b", 2, 4, 0, {"all-linear"}, {31}),
                              bottleneck_job("c", 3, 8, Activation::relu, {90})};
  for (RandomJob& job : jobs) {
    job.steps = 1;
    job.optimizer.kind = OptimizerKind::sgd;
  }
  const std::vector<at::Tensor> expected = train_on_one(jobs, config);
  const auto parts = divided_parts(config, 2);
  RankThreads ranks(parts, even_layout(config, 2, 1, 2), 1);
  size_t broken_off = 0, partly = 0;
  for (int64_t limit = 5; limit < 150; limit += 14) {
    int64_t count = 0;
    ranks.observe([&](int32_t rank, const Operator&) {
      if (rank == 3 && ++count == limit) throw Trouble();
    });
    const auto trained = Lives(jobs, *parts.front()).train(small_microbatches, &ranks, [&](const StepPlan& plan, std::span<JobRound> rounds) {
      try {
        ranks.run(plan_for(plan, ranks.layout()), rounds);
      } catch (const Trouble&) {
        ++broken_off;
      }
      ranks.observe({});
      // What was not stepped goes through on its own.
      std::vector<JobRound> rest;
      std::vector<BatchShape> shapes;
      for (const JobRound& round : rounds) {
        if (round.stepped) continue;
        rest.push_back(round);
        shapes.push_back(round.batch->shape(round.job, 0));
      }
      if (rest.empty()) return;
      partly += rest.size() < rounds.size();
      PackingPolicy policy = small_microbatches;
      policy.layer_count = config.layer_count;
      ranks.run(plan_for(plan_step(shapes, policy), ranks.layout()), rest);
      for (const JobRound& done : rest) {
        for (JobRound& round : rounds) {
          if (round.job == done.job) round = done;
        }
      }
    });
    expect_same(trained, expected, fmt::format("broken off after {} operators", limit));
  }
  EXPECT_GT(broken_off, 3u);
  EXPECT_GT(partly, 0u);
}

TEST(TensorParallelRanks, HoldTheWeightsOnceTogether) {
  const ModelConfig config = untied_nine_heads();
  const int64_t whole = random_backbone(config, at::kDouble, at::kCPU)->weight_bytes();
  int64_t together = 0;
  for (const auto& part : divided_parts(config, 3)) together += part->weight_bytes();
  const int64_t norms = (2 * config.layer_count + 1) * config.hidden_size * 8, rotary = 2 * config.context_length * config.head_dim / 2 * 8;
  EXPECT_EQ(together, whole + 2 * (norms + rotary));
}

int64_t adapter_bytes() {
  const MemoryUsage usage = memory_usage();
  return usage[MemoryKind::adapters] + usage[MemoryKind::gradients] + usage[MemoryKind::optimizer];
}

TEST(TensorParallelRanks, TakeTheMemoryForShardsThatIsPredicted) {
  install_counting_allocator();
  const ModelConfig config = eight_heads(2, 2);
  RankThreads ranks(divided_parts(config, 4, at::kFloat), even_layout(config, 1, 1, 4), 1);
  MemoryFacts facts = memory_facts(at::kFloat, at::kCPU);
  facts.ranks = facts.tensor_parallel = 4;
  facts.selection_bytes = 0;
  for (const RandomJob& job : {lora_job("lora", 1, 32, 0, {"all-linear"}, {9}), bottleneck_job("bottleneck", 2, 32, Activation::relu, {9})}) {
    const int64_t before = adapter_bytes();
    const std::unique_ptr<Adapter> adapter = job.make_adapter(config, at::kFloat, at::kCPU);
    ranks.share(0, *adapter);
    const int64_t taken = adapter_bytes() - before;
    JobFootprint footprint{.adapters = adapter_shapes(0, job.adapter, adapter->setup().modules, config)};
    footprint.moment_count = 2;
    const int64_t predicted = resident_bytes(config, footprint, facts).total();
    EXPECT_LE(taken, predicted) << job.name;
    EXPECT_GE(taken, predicted * 9 / 10) << job.name;
    ranks.forget(0);
    EXPECT_LE(adapter_bytes() - before, predicted / 2) << "the whole adapter is left";
  }
}

/// Losses of two steps in this dtype, on ranks that divide the layers or on one.
std::vector<double> losses_in(at::ScalarType compute, int64_t degree) {
  const ModelConfig config = eight_heads(2);
  const std::vector<RandomJob> jobs = every_method(config);
  const auto parts = divided_parts(config, degree, compute);
  RankThreads ranks(parts, even_layout(config, 1, 1, degree), 1);
  const auto trained = Lives(jobs, *parts.front()).train(small_microbatches, &ranks, [&](const StepPlan& plan, std::span<JobRound> rounds) {
    ranks.run(plan_for(plan, ranks.layout()), rounds);
  });
  std::vector<double> losses;
  for (const at::Tensor& value : trained) {
    if (value.dim() == 0) losses.push_back(value.item<double>());
  }
  return losses;
}

TEST(TensorParallelRanks, AreAsNearToExactLossesInLowPrecisionAsOneRank) {
  const std::vector<double> exact = losses_in(at::kDouble, 1);
  const auto furthest = [&](at::ScalarType compute, int64_t degree) {
    const std::vector<double> losses = losses_in(compute, degree);
    double furthest = 0;
    for (size_t i = 0; i < losses.size(); ++i) furthest = std::max(furthest, std::abs(losses[i] / exact[i] - 1));
    return furthest;
  };
  EXPECT_LE(furthest(at::kFloat, 2), 1e-6);
  for (const int64_t degree : {1, 2, 4}) EXPECT_LE(furthest(at::kBFloat16, degree), 4e-3) << degree;
}

}  // namespace
}  // namespace cotune
