// Ranks that divide a layer's features, and between products the tokens, train what one rank trains.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "adapter/adapter_shard.h"
#include "engine/process_ranks.h"
#include "engine/random_job.h"
#include "engine/rank_rounds.h"
#include "engine/rank_threads.h"
#include "schedule/adapter_shape.h"
#include "schedule/operator_cost.h"
#include "schedule/random_batches.h"
#include "schedule/sequence_parallel.h"

namespace cotune {
namespace {

using namespace testing;

PipelineLayout layout_in_slices(const ModelConfig& config, int32_t ranks, int64_t degree, int32_t chunks = 1) {
  PipelineLayout layout = even_layout(config, ranks, chunks, degree);
  for (StageShape& stage : layout.stages) stage.is_sequence_parallel = true;
  return layout;
}

/// Adam's epsilon is far above what sums in another order are apart, which a step would magnify.
std::vector<RandomJob> steady(std::vector<RandomJob> jobs, const ModelConfig& config) {
  for (RandomJob& job : jobs) {
    job.steps = 2;
    job.optimizer.epsilon = 1e-5;
    for (int64_t& layer : job.adapter.layers_to_transform) layer = std::min(layer, config.layer_count - 1);
  }
  return jobs;
}

/// Besides every method: the lowest adapted product of each kind and method.
std::vector<RandomJob> jobs_for(const ModelConfig& config) {
  std::vector<RandomJob> jobs = every_method();
  jobs[3].row_lengths = {270, 20};
  jobs[4].row_lengths = {51};
  const auto add = [&](RandomJob job, std::vector<std::string> modules) {
    job.adapter.target_modules = std::move(modules);
    job.adapter.layers_to_transform = {1};
    jobs.push_back(std::move(job));
  };
  add(lora_job("up", 7, 4, 0.2, {}, {14, 3}), {"up_proj"});
  add(lora_job("o", 8, 4, 0, {}, {5}), {"o_proj"});
  add(lora_job("down", 9, 4, 0.1, {}, {8, 2}), {"down_proj"});
  add(bottleneck_job("after attention", 10, 5, Activation::silu, {9, 4}), {"o_proj"});
  add(bottleneck_job("after mlp", 11, 5, Activation::relu, {4, 11}), {"down_proj"});
  add(diff_pruning_job("sparse gate", 12, 0.05, {13}), {"gate_proj"});
  add(diff_pruning_job("sparse o", 13, 0.05, {3, 4}), {"o_proj"});
  return steady(std::move(jobs), config);
}

std::vector<at::Tensor> train_on(RankGroup& ranks, const std::vector<RandomJob>& jobs, const Backbone& backbone, const PackingPolicy& policy,
                                 const LifeEvents& events) {
  return train(jobs, backbone, policy, [&](Round& round) { ranks.run(plan_round(round.plan, ranks.layout()), round.rounds); }, events);
}

TEST(SequenceParallelRanks, TrainTheAdaptersOfOneRank) {
  for (const auto& [config, stages, degree, recompute] : {std::tuple(eight_heads(3), 1, 2, false), {eight_heads(2), 2, 2, true},
                                                          {eight_heads(2), 1, 4, false}, {eight_heads(2, 2), 1, 4, true},
                                                          {nine_heads(2), 1, 3, false}}) {
    const std::vector<RandomJob> jobs = jobs_for(config);
    const auto expected = train_on_one(jobs, random_backbone(config, at::kDouble, at::kCPU), small_microbatches());
    const auto parts = divided_parts(config, degree);
    RankThreads ranks(parts, layout_in_slices(config, stages, degree), 1);
    PackingPolicy policy = small_microbatches();
    policy.recompute = recompute;
    const auto trained = train_on(ranks, jobs, *parts.front(), policy, shared_with(ranks));
    EXPECT_LE(largest_difference(trained, expected), 1e-10) << "pp=" << stages << ",tp=" << degree << ", recomputed: " << recompute;
  }
}

TEST(SequenceParallelRanks, TrainTheSameOverSeveralStagesOfARank) {
  const ModelConfig config = eight_heads(4);
  const std::vector<RandomJob> jobs = jobs_for(config);
  const auto parts = divided_parts(config, 2);
  RankThreads ranks(parts, layout_in_slices(config, 2, 2, 2), 1);
  const auto trained = train(jobs, *parts.front(), small_microbatches(),
                             [&](Round& round) { ranks.run(plan_round(round.plan, ranks.layout(), RankOrder::gpipe), round.rounds); }, shared_with(ranks));
  EXPECT_LE(largest_difference(trained, train_on_one(jobs, random_backbone(config, at::kDouble, at::kCPU), small_microbatches())), 1e-10);
}

TEST(SequenceParallelRanks, TrainTheSameWhateverTheJobsLayoutAndDegree) {
  for (const int64_t degree : {2, 3, 4}) {
    const ModelConfig config = degree == 3 ? nine_heads(2) : eight_heads(2);
    const std::shared_ptr<const Backbone> whole = random_backbone(config, at::kDouble, at::kCPU);
    const auto parts = divided_parts(config, degree);
    for (const int32_t stages : {1, 2}) {
      RankThreads ranks(parts, layout_in_slices(config, stages, degree), 1);
      for (uint64_t key = 0; key < 6; ++key) {
        Dice dice(key + 100 * static_cast<uint64_t>(degree) + 1000 * static_cast<uint64_t>(stages));
        const std::vector<RandomJob> jobs = steady(random_jobs(dice, {.jobs = {1, 4}, .rows = {1, 4}, .longest = 30, .has_tiny_jobs = true}), config);
        PackingPolicy policy{.sharing = key % 2 == 0 ? Sharing::batch_all : Sharing::temporal,
                             .layout = std::array{Layout::ragged, Layout::padded, Layout::chunked}[key % 3],
                             .token_budget = 256};
        if (policy.layout == Layout::chunked) policy.chunk_size = 64;
        const auto trained = train_on(ranks, jobs, *parts.front(), policy, shared_with(ranks));
        EXPECT_LE(largest_difference(trained, train_on_one(jobs, whole, policy)), 1e-10) << stages << " stages, degree " << degree << ", key " << key;
      }
    }
  }
}

TEST(SequenceParallelRanks, ThatAreProcessesTrainTheSame) {
  const ModelConfig config = eight_heads(2);
  const std::vector<RandomJob> jobs = jobs_for(config);
  const std::shared_ptr<const Backbone> whole = random_backbone(config, at::kDouble, at::kCPU);
  const auto expected = train_on_one(jobs, whole, small_microbatches());
  for (const int32_t stages : {1, 2}) {
    Processes processes(config, layout_in_slices(config, stages, 2));
    const auto trained = train_on(processes.leader(), jobs, *whole, small_microbatches(), processes.events());
    EXPECT_LE(largest_difference(trained, expected), 1e-10) << stages << " stages";
    for (const std::string& why : processes.end()) EXPECT_EQ(why, "");
  }
}

TEST(SequenceParallelRanks, AreAsNearToExactLossesInLowPrecisionAsOneRank) {
  const ModelConfig config = eight_heads(2);
  const auto losses_in = [&](at::ScalarType compute, const PipelineLayout& layout, int64_t degree) {
    const auto parts = divided_parts(config, degree, compute);
    RankThreads ranks(parts, layout, 1);
    std::vector<double> losses;
    for (const at::Tensor& value : train_on(ranks, jobs_for(config), *parts.front(), small_microbatches(), shared_with(ranks))) {
      if (value.dim() == 0) losses.push_back(value.item<double>());
    }
    return losses;
  };
  const std::vector<double> exact = losses_in(at::kDouble, even_layout(config, 1), 1);
  const auto furthest = [&](at::ScalarType compute, int64_t degree) {
    const std::vector<double> losses = losses_in(compute, layout_in_slices(config, 1, degree), degree);
    double most = losses.size() == exact.size() && !exact.empty() ? 0 : INFINITY;
    for (size_t i = 0; i < losses.size(); ++i) most = std::max(most, std::abs(losses[i] / exact[i] - 1));
    return most;
  };
  EXPECT_LE(furthest(at::kFloat, 2), 1e-6);
  for (const int64_t degree : {2, 4}) EXPECT_LE(furthest(at::kBFloat16, degree), 4e-3) << degree;
}

TEST(SequenceParallelRanks, EvaluateAsOneRankDoes) {
  const ModelConfig config = eight_heads(4);
  RankThreads ranks(divided_parts(config, 2), layout_in_slices(config, 2, 2), 1);
  expect_evaluation_of_one_rank(ranks, random_backbone(config, at::kDouble, at::kCPU));
}

TEST(SequenceParallelRanks, ThatBreakOffHaveMadeEachStepEverywhereOrNowhere) {
  const ModelConfig config = eight_heads(4);
  RankThreads ranks(divided_parts(config, 2), layout_in_slices(config, 2, 2), 1);
  expect_steps_everywhere_or_nowhere(ranks, random_backbone(config, at::kDouble, at::kCPU), 3, 120);
}

struct Communicated {
  std::vector<int64_t> collectives, bytes;
};

/// Of one round of the jobs, all in one microbatch.
Communicated communicated(const std::vector<RandomJob>& jobs, RankThreads& ranks, const Backbone& part) {
  PackingPolicy policy{.sharing = Sharing::hybrid, .token_budget = 1024};
  Rounds rounds = rounds_of(jobs, part.config(), policy, 1);
  for (size_t i = 0; i < jobs.size(); ++i) ranks.share(static_cast<int32_t>(i), *rounds.adapters[i]);
  EXPECT_EQ(rounds.plans.front().microbatches.size(), 1u);
  ranks.run(plan_round(rounds.plans.front(), ranks.layout()), rounds.rounds);
  for (size_t i = 0; i < jobs.size(); ++i) ranks.forget(static_cast<int32_t>(i));
  Communicated all;
  for (const RankTime& time : ranks.times().ranks) {
    all.collectives.push_back(time.collectives);
    all.bytes.push_back(time.group_bytes);
  }
  return all;
}

TEST(SequenceParallelRanks, SendWhatAllReducesDoAndLoraOnlyItsLowRankColumnsBesides) {
  const ModelConfig config = eight_heads(2);
  const auto parts = divided_parts(config, 2);
  RankThreads whole(parts, even_layout(config, 1, 1, 2), 1), slices(parts, layout_in_slices(config, 1, 2), 1);
  const int64_t tokens = 40, rank = 4, layers = config.layer_count, element = 8;
  const RandomJob lora = lora_job("lora", 1, rank, 0.1, {"all-linear"}, {tokens}), other = lora_job("other", 2, rank, 0, {"all-linear"}, {tokens});
  const RandomJob bottleneck = bottleneck_job("bottleneck", 3, 8, Activation::relu, {tokens});
  // The embedding, four in each layer each way, three of the head; a job's summands and Σ g².
  const int64_t microbatch = 1 + 8 * layers + 3;
  const auto expect = [&](const std::vector<RandomJob>& jobs, int64_t collectives, int64_t riding) {
    const Communicated plain = communicated(jobs, whole, *parts.front()), sliced = communicated(jobs, slices, *parts.front());
    EXPECT_EQ(sliced.collectives, std::vector<int64_t>(2, collectives));
    // The embedding's rows are not gathered, but the error of the lowest layer's o is, whose input gradient is summed nowhere. Of labelled
    // rows every rank sends as many as the one that has most.
    const int64_t row = config.hidden_size * element, first = sliced.bytes[0] - plain.bytes[0], second = sliced.bytes[1] - plain.bytes[1];
    EXPECT_EQ(std::min(first, second), riding);
    EXPECT_EQ(std::abs(first - second) % row, 0);
    EXPECT_LT(std::abs(first - second), tokens / 4 * row);
  };
  // q, k and v, and gate and up, of every layer.
  const auto riding = [&](int64_t of_tokens) { return layers * of_tokens / 2 * 5 * rank * element; };
  expect({lora}, microbatch + 2, riding(tokens));
  expect({lora, other}, microbatch + 4, riding(2 * tokens));
  expect({lora, other, bottleneck}, microbatch + 6, riding(3 * tokens) + bottleneck.make_adapter(config, at::kDouble, at::kCPU)->parameter_count() * element);
}

TEST(SequenceParallelRanks, AdaptInSlicesWhatNeedsAProductsWholeOutput) {
  for (const AdapterMethod method : {AdapterMethod::lora, AdapterMethod::bottleneck, AdapterMethod::diff_pruning}) {
    EXPECT_EQ(adapts_slices(method), method_of(method).withholds_residual());
  }
}

/// One round on two ranks with their interpreters: what each keeps when its head runs.
TEST(SequenceParallelRanks, KeepASliceOfTheStreamAndOfNorms) {
  const ModelConfig config = eight_heads(2);
  const auto parts = divided_parts(config, 2);
  for (const RandomJob& job : {lora_job("lora", 1, 8, 0.1, {"all-linear"}, {30, 10}), bottleneck_job("bottleneck", 2, 8, Activation::relu, {30, 10})}) {
    const PipelineLayout layout = layout_in_slices(config, 1, 2);
    Rounds rounds = rounds_of({job}, config, small_microbatches(), 1);
    const RankPlan plan = plan_round(rounds.plans.front(), layout);
    const AdapterSetup& setup = rounds.adapters.front()->setup();
    const std::vector<AdapterShape> shapes = adapter_shapes(0, job.adapter, setup.modules, config);
    const MicrobatchCounts counts{.tokens = 40, .labelled = 38, .job_tokens = {40}};
    const auto listed = [&](const StageShape& stage) {
      int64_t bytes = 0;
      for (const Operator& op : stage_operators(config, stage, shapes, Direction::forward)) bytes += saved_bytes(config, stage, op, counts, 8);
      return bytes;
    };
    auto pipelines = thread_communicators(1);
    auto other_pipeline = thread_communicators(1);
    auto groups = thread_communicators(2);
    std::vector<int64_t> kept(2, 0);
    const auto run = [&](size_t rank, Communicator& pipeline) {
      const TensorShard shard = layout.shard_of(static_cast<int32_t>(rank));
      const auto adapter = make_adapter_shard(*rounds.adapters.front(), shard);
      std::vector<JobRound> own = rounds.rounds;
      own.front().adapter = adapter.get();
      Interpreter interpreter(parts[rank], layout, 0);
      interpreter.observe([&](const Operator& op, const MicrobatchState& state, double) {
        if (op.kind != OperatorKind::head) return;
        kept[rank] = static_cast<int64_t>(state.final_hidden.nbytes());
        for (const LayerRecord& record : state.layers) kept[rank] += record.bytes();
      });
      TensorGroup group(*groups[rank]);
      interpreter.run(plan, own, pipeline, &group);
      groups[rank]->barrier();
    };
    std::thread second([&] { run(1, *other_pipeline.front()); });
    run(0, *pipelines.front());
    second.join();
    // What is kept: a layer's output is the next one's input.
    for (const int64_t bytes : kept) EXPECT_EQ(bytes, listed(layout.stages.front())) << job.name;
    StageShape whole = layout.stages.front();
    whole.is_sequence_parallel = false;
    const int64_t stream = (2 * config.layer_count + 1) * 40 * config.hidden_size * 8 + 2 * config.layer_count * 40 * 8;
    const int64_t bottlenecks = job.adapter.method == AdapterMethod::bottleneck ? 2 * config.layer_count * 40 * (config.hidden_size + 8) * 8 : 0;
    EXPECT_EQ(listed(whole) - listed(layout.stages.front()), (stream + bottlenecks) / 2) << job.name;
  }
}

}  // namespace
}  // namespace cotune
