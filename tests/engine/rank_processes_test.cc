// Ranks with weights, adapters and memory of their own, as processes have them; here each is a thread, and shares nothing.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "adapter/adapter_shard.h"
#include "engine/adapter_state.h"
#include "engine/memory_facts.h"
#include "engine/process_ranks.h"
#include "engine/rank_rounds.h"
#include "ops/memory.h"
#include "schedule/adapter_shape.h"
#include "schedule/memory/resident_memory.h"
#include "schedule/memory/weight_memory.h"
#include "schedule/pipeline/gpipe.h"
#include "schedule/pipeline/rank_place.h"

namespace cotune {
namespace {

using namespace testing;

class RanksAsProcesses : public ::testing::Test {
 protected:
  const ModelConfig config = kernel_friendly_config(4);
  const std::shared_ptr<const Backbone> backbone = random_backbone(config, at::kDouble, at::kCPU);
};

TEST_F(RanksAsProcesses, TrainTheAdaptersOfOneRank) {
  const std::vector<RandomJob> jobs = every_method();
  const std::vector<at::Tensor> expected = train_on_one(jobs, backbone, small_microbatches());
  PackingPolicy recomputed = small_microbatches();
  recomputed.recompute = true;
  for (const auto& [ranks, policy, order] : {std::tuple(2, small_microbatches(), RankOrder::automatic), {2, recomputed, RankOrder::lorapp},
                                             {4, small_microbatches(), RankOrder::muxtune}, {4, small_chunks(), RankOrder::one_f_one_b}}) {
    Processes processes(config, even_layout(config, ranks));
    const auto run = [&](Round& round) {
      processes.leader().run(plan_round(round.plan, processes.leader().layout(), order), round.rounds);
    };
    const auto trained = train(jobs, *backbone, policy, run, processes.events());
    EXPECT_LE(largest_difference(trained, expected), 1e-10) << ranks << " ranks, order " << static_cast<int>(order);
    const RankTimes& times = processes.leader().times();
    ASSERT_EQ(times.ranks.size(), static_cast<size_t>(ranks));
    for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) {
      const RankTime& time = times.ranks[rank];
      EXPECT_FALSE(time.spans.empty());
      EXPECT_GT(time.sent.count, 0);
      EXPECT_GT(time.sent.bytes, 64 * time.sent.count);
      EXPECT_GT(time.operator_seconds.at("qkv_proj"), 0);
      EXPECT_LE(time.waited_s + times.idle_s[rank], times.seconds);
    }
    for (const std::string& why : processes.end()) EXPECT_EQ(why, "");
  }
}

TEST_F(RanksAsProcesses, HoldTheWeightsAndAdaptersOfTheirLayersAlone) {
  const std::vector<RandomJob> jobs = every_method();
  const PipelineLayout layout = even_layout(config, 2);
  int64_t weights = 0;
  for (int32_t rank = 0; rank < 2; ++rank) {
    const auto part = backbone_of_rank(config, {{layout}}, rank);
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
  const std::vector<at::Tensor> expected = train_on_one(jobs, backbone, small_microbatches());
  Processes processes(config, even_layout(config, 2, 2));
  RankLeader& leader = processes.leader();
  Rounds together = rounds_of(jobs, config, small_microbatches(), steps);
  for (size_t i = 0; i < jobs.size(); ++i) leader.share(static_cast<int32_t>(i), *together.adapters[i]);
  const PipelineWork work = work_of(together.plans, leader.layout(), one_unit, {8, 8});
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

TEST_F(RanksAsProcesses, SayWhatTheyAreAtBetweenRuns) {
  const RankLeader* leader = nullptr;
  std::vector<std::string> tasks;
  Processes processes(config, even_layout(config, 2), [&](int32_t) { tasks.push_back(leader->progress()->state().task); });
  leader = &processes.leader();
  const std::vector<RandomJob> jobs{diff_pruning_job("a", 1, 0.05, {30, 20})};
  const auto run = [&](Round& round) {
    EXPECT_EQ(leader->progress()->state().task, "");
    processes.leader().run(plan_round(round.plan, leader->layout()), round.rounds);
  };
  train(jobs, *backbone, small_microbatches(), run, processes.events());
  EXPECT_EQ(leader->progress()->state().task, "");
  std::erase(tasks, "");  // of runs
  EXPECT_EQ(tasks, (std::vector<std::string>{"sharing the adapter of job 0", "ending a selection pass of job 0"}));
}

/// The second rank fails where something is to be done; then it can be done.
void expect_failures_to_be_said(const ModelConfig& config, const PipelineLayout& layout) {
  const std::shared_ptr<const Backbone> backbone = random_backbone(config, at::kDouble, at::kCPU);
  std::atomic<bool> fails{false};
  Processes processes(config, layout, [&](int32_t rank) {
    if (fails && rank == 1) throw MemoryLimitExceeded("no room for activations");
  });
  RankLeader& leader = processes.leader();
  const auto expect_failure = [&](const std::function<void()>& attempt) {
    fails = true;
    try {
      attempt();
      ADD_FAILURE() << "went on without memory";
    } catch (const MemoryLimitExceeded& error) {
      EXPECT_STREQ(error.what(), "rank 1: no room for activations");
    }
    fails = false;
  };
  std::vector<std::unique_ptr<JobLife>> lives;
  lives.push_back(std::make_unique<JobLife>(0, lora_job("a", 1, 4, 0, {"all-linear"}, {30, 20}), *backbone));
  expect_failure([&] { leader.share(0, lives.front()->adapter()); });
  leader.forget(0);
  leader.share(0, lives.front()->adapter());
  Round round = next_round(lives, small_microbatches(), config);
  const RankPlan plan = plan_round(round.plan, leader.layout());
  expect_failure([&] { leader.run(plan, round.rounds); });
  EXPECT_FALSE(round.rounds.front().stepped);
  leader.run(plan, round.rounds);
  EXPECT_TRUE(round.rounds.front().stepped) << round.rounds.front().failure;
  leader.forget(0);
  // A selection that cannot end begins again.
  const std::vector<RandomJob> selecting{diff_pruning_job("b", 2, 0.05, {33, 18})};
  lives.front() = std::make_unique<JobLife>(0, selecting.front(), *backbone);
  JobLife& life = *lives.front();
  leader.share(0, life.adapter());
  while (life.adapter().finished_selection_passes() == 0) {
    round = next_round(lives, small_microbatches(), config);
    leader.run(plan_round(round.plan, leader.layout()), round.rounds);
    life.finish_round(round.rounds.front());
  }
  expect_failure([&] { leader.end_selection(0, life.adapter(), 0); });
  leader.forget(0);
  const auto trained = train(selecting, *backbone, small_microbatches(),
                             [&](Round& each) { leader.run(plan_round(each.plan, leader.layout()), each.rounds); }, processes.events());
  EXPECT_LE(largest_difference(trained, train_on_one(selecting, backbone, small_microbatches())), 1e-10);
  for (const std::string& why : processes.end()) EXPECT_EQ(why, "");
}

TEST_F(RanksAsProcesses, SayWhatFailedOnAnotherRankAndGoOn) { expect_failures_to_be_said(config, even_layout(config, 3)); }

/// Every method, on two layers; Adam's epsilon is far above what sums in another order are apart, which a step would magnify.
std::vector<RandomJob> steady_jobs() {
  std::vector<RandomJob> jobs = every_method();
  for (RandomJob& job : jobs) {
    job.steps = 2;
    job.optimizer.epsilon = 1e-5;
  }
  jobs[3].adapter.target_modules = {"k_proj", "down_proj"};
  jobs[3].row_lengths = {270, 20};
  jobs[4].adapter.layers_to_transform = {1};
  jobs[4].row_lengths = {51};
  jobs[3].optimizer.kind = OptimizerKind::sgd;
  jobs[3].optimizer.momentum = 0.9;
  return jobs;
}

struct Division {
  int32_t stages;
  int64_t degree;
  bool recompute;
};

void expect_training_of_one_rank(const ModelConfig& config, const std::vector<RandomJob>& jobs, const std::vector<Division>& divisions) {
  const std::shared_ptr<const Backbone> backbone = random_backbone(config, at::kDouble, at::kCPU);
  const std::vector<at::Tensor> expected = train_on_one(jobs, backbone, small_microbatches());
  for (const auto& [stages, degree, recompute] : divisions) {
    Processes processes(config, even_layout(config, stages, 1, degree));
    RankLeader& leader = processes.leader();
    PackingPolicy policy = small_microbatches();
    policy.recompute = recompute;
    const auto run = [&](Round& round) {
      leader.run(plan_round(round.plan, leader.layout()), round.rounds);
      EXPECT_EQ(leader.times().ranks.size(), static_cast<size_t>(leader.layout().worker_count()));
      for (const RankTime& time : leader.times().ranks) EXPECT_GT(time.collectives, 0);
    };
    const auto trained = train(jobs, *backbone, policy, run, processes.events());
    EXPECT_LE(largest_difference(trained, expected), 1e-10) << "pp=" << stages << ",tp=" << degree;
    for (const std::string& why : processes.end()) EXPECT_EQ(why, "");
  }
}

TEST(RanksAsProcessesThatDivideLayers, TrainTheAdaptersOfOneRank) {
  expect_training_of_one_rank(eight_heads(2), steady_jobs(), {{1, 2, false}, {2, 2, true}});
}

TEST(RanksAsProcessesThatDivideLayers, OfThreeTrainTheAdaptersOfOneRank) {
  expect_training_of_one_rank(nine_heads(2), steady_jobs(), {{1, 3, false}});
}

TEST(RanksAsProcessesThatDivideLayers, TrainTheAdaptersOfOneRankWhereTheyShareKvHeads) {
  std::vector<RandomJob> jobs = steady_jobs();
  jobs.resize(4);  // of each method
  expect_training_of_one_rank(eight_heads(2, 2), jobs, {{1, 4, false}});
}

TEST(RanksAsProcessesThatDivideLayers, EvaluateAsOneRankDoes) {
  const ModelConfig config = eight_heads(4);
  Processes processes(config, even_layout(config, 2, 1, 2));
  expect_evaluation_of_one_rank(processes.leader(), random_backbone(config, at::kDouble, at::kCPU));
}

TEST(RanksAsProcessesThatDivideLayers, ThatBreakOffHaveMadeEachStepEverywhereOrNowhere) {
  const ModelConfig config = eight_heads(4);
  Processes processes(config, even_layout(config, 2, 1, 2));
  expect_steps_everywhere_or_nowhere(processes.leader(), random_backbone(config, at::kDouble, at::kCPU), 0, 200);
}

TEST(RanksAsProcessesThatDivideLayers, SayWhatFailedOnAnotherRankAndGoOn) {
  const ModelConfig config = eight_heads(4);
  expect_failures_to_be_said(config, even_layout(config, 2, 1, 2));
}

TEST(RanksAsProcessesThatDivideLayers, LeaveAJobAloneThatIsNotFinite) {
  const ModelConfig config = eight_heads(2);
  const std::shared_ptr<const Backbone> backbone = random_backbone(config, at::kDouble, at::kCPU);
  const std::vector<RandomJob> jobs{lora_job("sound", 1, 4, 0, {"all-linear"}, {30, 20}),
                                    lora_job("broken", 2, 4, 0, {"all-linear"}, {31})};
  Processes processes(config, even_layout(config, 1, 1, 2));
  RankLeader& leader = processes.leader();
  Rounds together = rounds_of(jobs, config, small_microbatches(), 2);
  // Both steps without a flush: the first is not finite, in the other rank's part alone.
  at::Tensor broken = together.adapters[1]->parameters()[1].value;
  broken.view(-1)[-1] = std::numeric_limits<double>::infinity();
  const std::vector<at::Tensor> before = values_of(*together.adapters[1]);
  for (size_t i = 0; i < jobs.size(); ++i) leader.share(static_cast<int32_t>(i), *together.adapters[i]);
  const PipelineWork work = work_of(together.plans, leader.layout(), one_unit, {8, 8});
  leader.run(plan_in_order(together.plans, leader.layout(), work, gpipe(work)), together.rounds);
  for (const size_t round : {0, 2}) EXPECT_TRUE(together.rounds[round].stepped) << together.rounds[round].failure;
  for (const size_t round : {1, 3}) {
    EXPECT_FALSE(together.rounds[round].stepped);
    EXPECT_NE(together.rounds[round].failure, "");
  }
  for (size_t i = 0; i < jobs.size(); ++i) leader.gather(static_cast<int32_t>(i), *together.adapters[i]);
  EXPECT_EQ(difference_in_bits(values_of(*together.adapters[1]), before), "");
}

TEST(RanksAsProcessesThatDivideLayers, HoldTheWeightsAndAdaptersOfTheirPartsAlone) {
  const ModelConfig config = eight_heads(4);
  const PipelineLayout layout = even_layout(config, 2, 1, 2);
  int64_t weights = 0;
  for (int32_t rank = 0; rank < 4; ++rank) weights += backbone_of_rank(config, {{layout}}, rank)->weight_bytes();
  // Norms are on both ranks of a stage, rotary tables on all, and the embedding, which is tied to the head, on both stages.
  const auto whole = random_backbone(config, at::kDouble, at::kCPU);
  const auto rotary = static_cast<int64_t>(whole->rotary().cosine.nbytes() + whole->rotary().sine.nbytes());
  const int64_t norms = (2 * config.layer_count + 1) * config.hidden_size * 8;
  EXPECT_EQ(weights, whole->weight_bytes() + 3 * rotary + norms + config.vocabulary_size * config.hidden_size * 8);
  for (const RandomJob& job : every_method()) {
    if (job.adapter.method == AdapterMethod::diff_pruning) continue;  // has no parameters yet
    const auto adapter = job.make_adapter(config, at::kDouble);
    int64_t parameters = 0, twice = 0;
    for (int32_t rank = 0; rank < 4; ++rank) {
      const std::vector<LayerRange> layers = layers_of(layout, rank);
      const auto part = make_adapter_shard(*adapter, layout.shard_of(rank), layers);
      parameters += part->parameter_count();
      for (const Parameter& parameter : part->parameters()) {
        if (rank % 2 == 1 && parameter.place.dimension < 0) twice += parameter.value.numel();
      }
      const std::vector<ParameterPart> parts = parts_from_json(parts_to_json(parts_of(*part, layers)));
      EXPECT_TRUE(at::equal(flat_state(*part, layers), flat_state(*adapter, layers, parts))) << job.name;
    }
    EXPECT_EQ(parameters, adapter->parameter_count() + twice) << job.name;
  }
}

int64_t adapter_bytes() {
  const MemoryUsage usage = memory_usage();
  return usage[MemoryKind::adapters] + usage[MemoryKind::gradients] + usage[MemoryKind::optimizer];
}

TEST(RanksAsProcessesThatDivideLayers, ComeTogetherAgainWhereMemoryHasRunOut) {
  install_counting_allocator();
  const ModelConfig config = eight_heads(2);
  Processes processes(config, even_layout(config, 1, 1, 2));
  RankLeader& leader = processes.leader();
  std::vector<std::unique_ptr<JobLife>> lives;
  lives.push_back(std::make_unique<JobLife>(0, lora_job("a", 1, 4, 0, {"all-linear"}, {30, 20}), *random_backbone(config, at::kDouble, at::kCPU)));
  leader.share(0, lives.front()->adapter());
  Round round = next_round(lives, small_microbatches(), config);
  const RankPlan plan = plan_round(round.plan, leader.layout());
  int64_t count = 0;
  leader.observe([&](int32_t, const Operator&) {
    if (++count == 10) set_memory_limit(1);  // which all ranks here have in common, until they have met again
  });
  EXPECT_THROW(leader.run(plan, round.rounds), MemoryLimitExceeded);
  set_memory_limit(0);
  EXPECT_FALSE(round.rounds.front().stepped);
  leader.observe({});
  leader.run(plan, round.rounds);
  EXPECT_TRUE(round.rounds.front().stepped) << round.rounds.front().failure;
  for (const std::string& why : processes.end()) EXPECT_EQ(why, "");
}

TEST(RanksAsProcessesThatDivideLayers, TakeTheMemoryThatIsPredicted) {
  install_counting_allocator();
  ModelConfig config = eight_heads(2);
  config.intermediate_size = 192;  // parts of which suit our kernels
  config.vocabulary_size = 256;
  const PipelineLayout layout = even_layout(config, 1, 1, 2);
  Processes processes(config, layout, {}, at::kFloat);
  const MemoryFacts alone = memory_facts(at::kFloat, at::kCPU);
  MemoryFacts facts = alone;
  facts.ranks = facts.tensor_parallel = 2;
  facts.process_stages = layout.stages;
  for (const RandomJob& job : {lora_job("lora", 1, 32, 0, {"all-linear"}, {9}), bottleneck_job("bottleneck", 2, 32, Activation::relu, {9})}) {
    const int64_t before = adapter_bytes();
    const std::unique_ptr<Adapter> adapter = job.make_adapter(config, at::kFloat, at::kCPU);
    processes.leader().share(0, *adapter);
    const int64_t taken = adapter_bytes() - before;
    const JobFootprint footprint{.adapters = adapter_shapes(0, job.adapter, adapter->setup().modules, config)};
    // The whole adapter and a shard at the first rank; the other one, in this program too, has but a shard.
    const int64_t first = resident_bytes(config, footprint, facts).total();
    const int64_t predicted = 2 * first - resident_bytes(config, footprint, alone).total();
    EXPECT_LE(taken, predicted) << job.name;
    EXPECT_GE(taken, predicted * 9 / 10) << job.name;
    processes.leader().forget(0);
  }
  int64_t largest = 0;
  for (int32_t rank = 0; rank < 2; ++rank) {
    const auto part = backbone_of_rank(config, {{layout}}, rank, at::kFloat);
    largest = std::max(largest, part->weight_bytes() - static_cast<int64_t>(part->rotary().cosine.nbytes() + part->rotary().sine.nbytes()));
  }
  const int64_t weights = predict_weight_bytes(config, facts);
  EXPECT_GE(weights, largest);
  EXPECT_LE(weights, largest * 101 / 100);
}

}  // namespace
}  // namespace cotune
