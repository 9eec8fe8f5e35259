// Ranks that divide layers and compute one microbatch while another's all-reduce is under way: equal bits to those that wait.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <exception>

#include "engine/process_ranks.h"
#include "engine/random_job.h"
#include "engine/rank_rounds.h"
#include "engine/rank_threads.h"
#include "schedule/random_batches.h"

namespace cotune {
namespace {

using namespace testing;

/// Of every round: as it is planned without interleaving, or with it. pairs counts clocks of two microbatches.
std::vector<at::Tensor> train_on(RankGroup& ranks, const LifeEvents& events, const std::vector<RandomJob>& jobs, const Backbone& backbone,
                                 const PackingPolicy& policy, RankOrder order, size_t* pairs) {
  const auto run = [&](Round& round) {
    RankPlan plan = pairs == nullptr ? plan_round(round.plan, ranks.layout(), order)
                                     : plan_interleaved_round(round.plan, round.rounds, backbone.config(), ranks.layout(), order);
    for (const PipelineClock& clock : plan.clocks) *pairs += clock.microbatches.size() == 2 ? 1 : 0;
    ranks.run(std::move(plan), round.rounds);
  };
  return train(jobs, backbone, policy, run, events);
}

std::vector<RandomJob> jobs_for(const ModelConfig& config) {
  std::vector<RandomJob> jobs = every_method();
  jobs[4].adapter.layers_to_transform = {config.layer_count - 1};
  return jobs;
}

TEST(InterleavedRanks, TrainEqualBitsWithEveryMethod) {
  for (const auto& [stages, degree, compute] : {std::tuple(1, 2, at::kDouble), {2, 2, at::kFloat}, {1, 4, at::kBFloat16}}) {
    const ModelConfig config = eight_heads(stages == 1 ? 2 : 4);
    const auto parts = divided_parts(config, degree, compute);
    RankThreads ranks(parts, even_layout(config, stages, 1, degree), 1);
    const std::vector<RandomJob> jobs = jobs_for(config);
    size_t pairs = 0;
    const auto expected = train_on(ranks, shared_with(ranks), jobs, *parts.front(), small_microbatches(), RankOrder::lorapp, nullptr);
    const auto trained = train_on(ranks, shared_with(ranks), jobs, *parts.front(), small_microbatches(), RankOrder::lorapp, &pairs);
    EXPECT_EQ(difference_in_bits(trained, expected), "") << stages << " stages, degree " << degree;
    EXPECT_GT(pairs, 0u);
  }
}

TEST(InterleavedRanks, TrainEqualBitsWhateverTheJobsAndPacking) {
  const ModelConfig config = eight_heads(2);
  const auto parts = divided_parts(config, 2, at::kFloat);
  size_t pairs = 0;
  for (const int32_t stages : {1, 2}) {
    RankThreads ranks(parts, even_layout(config, stages, 1, 2), 1);
    for (uint64_t seed = 0; seed < 6; ++seed) {
      Dice dice(seed);
      const std::vector<RandomJob> jobs = random_jobs(dice, {.jobs = {2, 5}, .rows = {1, 5}, .longest = 120});
      PackingPolicy policy{.sharing = seed % 2 == 0 ? Sharing::hybrid : Sharing::temporal, .token_budget = 256};
      if (seed % 4 == 0) policy.hybrid_tasks = {{0, 1}};
      const RankOrder order = seed % 3 == 0 ? RankOrder::automatic : seed % 3 == 1 ? RankOrder::gpipe : RankOrder::muxtune;
      const auto expected = train_on(ranks, shared_with(ranks), jobs, *parts.front(), policy, order, nullptr);
      const auto trained = train_on(ranks, shared_with(ranks), jobs, *parts.front(), policy, order, &pairs);
      EXPECT_EQ(difference_in_bits(trained, expected), "") << stages << " stages, seed " << seed;
    }
  }
  EXPECT_GT(pairs, 20u);
}

TEST(InterleavedRanks, TrainEqualBitsOverSeveralStagesOfARank) {
  const ModelConfig config = eight_heads(4);
  const auto parts = divided_parts(config, 2, at::kFloat);
  RankThreads ranks(parts, even_layout(config, 2, 2, 2), 1);
  const std::vector<RandomJob> jobs = jobs_for(config);
  size_t pairs = 0;
  const auto expected = train_on(ranks, shared_with(ranks), jobs, *parts.front(), small_microbatches(), RankOrder::gpipe, nullptr);
  const auto trained = train_on(ranks, shared_with(ranks), jobs, *parts.front(), small_microbatches(), RankOrder::gpipe, &pairs);
  EXPECT_EQ(difference_in_bits(trained, expected), "");
  EXPECT_GT(pairs, 0u);
}

TEST(InterleavedRanks, ThatAreProcessesTrainEqualBits) {
  const ModelConfig config = eight_heads(2);
  Processes processes(config, even_layout(config, 1, 1, 2));
  const auto part = backbone_of_rank(config, {{processes.leader().layout()}}, 0);
  const std::vector<RandomJob> jobs = jobs_for(config);
  size_t pairs = 0;
  RankLeader& leader = processes.leader();
  const auto expected = train_on(leader, processes.events(), jobs, *part, small_microbatches(), RankOrder::lorapp, nullptr);
  const auto trained = train_on(leader, processes.events(), jobs, *part, small_microbatches(), RankOrder::lorapp, &pairs);
  EXPECT_EQ(difference_in_bits(trained, expected), "");
  EXPECT_GT(pairs, 0u);
  for (const std::string& why : processes.end()) EXPECT_EQ(why, "");
}

/// Adapters whose values are not zero, shared with the ranks, and one round of them.
struct OneRound {
  OneRound(const std::vector<RandomJob>& jobs, RankGroup& ranks, const ModelConfig& config)
      : rounds(rounds_of(jobs, config, small_microbatches(), 1)) {
    for (size_t i = 0; i < jobs.size(); ++i) ranks.share(static_cast<int32_t>(i), *rounds.adapters[i]);
  }
  Rounds rounds;
};

std::vector<RandomJob> three_jobs() {
  return {lora_job("a", 1, 4, 0, {"all-linear"}, {30, 20}), lora_job("b", 2, 4, 0, {"all-linear"}, {31, 200, 60}),
          bottleneck_job("c", 3, 8, Activation::relu, {90})};
}

TEST(InterleavedRanks, EvaluateWhatWaitingOnesDo) {
  const ModelConfig config = eight_heads(4);
  for (const int32_t stages : {1, 2}) {
    const auto parts = divided_parts(config, 2, at::kDouble);
    RankThreads ranks(parts, even_layout(config, stages, 1, 2), 1);
    OneRound one(three_jobs(), ranks, config);
    for (JobRound& round : one.rounds.rounds) round.purpose = RoundPurpose::evaluate;
    std::vector<JobRound> expected = one.rounds.rounds;
    const StepPlan& plan = one.rounds.plans.front();
    ranks.run(plan_round(plan, ranks.layout()), expected);
    RankPlan interleaved = plan_interleaved_round(plan, one.rounds.rounds, config, ranks.layout());
    EXPECT_LT(interleaved.clocks.size(), plan.microbatches.size());
    ranks.run(std::move(interleaved), one.rounds.rounds);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(one.rounds.rounds[i].loss_sum, expected[i].loss_sum);
      EXPECT_EQ(one.rounds.rounds[i].row_predicted, expected[i].row_predicted);
    }
  }
}

TEST(InterleavedRanks, MakeTheSumsOfWaitingOnes) {
  const ModelConfig config = eight_heads(2);
  const auto parts = divided_parts(config, 2, at::kDouble);
  RankThreads ranks(parts, even_layout(config, 1, 1, 2), 1);
  OneRound one(three_jobs(), ranks, config);
  const StepPlan& plan = one.rounds.plans.front();
  ranks.run(plan_round(plan, ranks.layout()), one.rounds.rounds);
  const std::vector<int64_t> waiting = collectives_by_rank(ranks.times());
  ranks.run(plan_interleaved_round(plan, one.rounds.rounds, config, ranks.layout()), one.rounds.rounds);
  EXPECT_EQ(collectives_by_rank(ranks.times()), waiting);
}

/// A device that is not there, whose clock stands still unless it is busy.
std::shared_ptr<EmulatedDevice> standing_device(double communication_share) {
  auto device = std::make_shared<EmulatedDevice>();
  device->operator_seconds = [](const StageShape&, const Operator& op, const MicrobatchCounts& counts) {
    return 1e-4 * static_cast<double>(counts.tokens * (1 + static_cast<int>(op.kind) % 5) + counts.labelled);
  };
  device->optimizer_seconds = [](int64_t, int64_t) { return 0.0; };
  device->all_reduce_seconds = [](int64_t, int64_t) { return 0.25; };
  device->rates.communication_share = communication_share;
  device->now_s = [] { return 0.0; };
  device->sleep_until_s = [](double) {};
  return device;
}

/// Embedding and head wait for sums of their own, one and two.
OperatorTimes times_of(const EmulatedDevice& device) {
  return [&device](const StageShape& stage, const Operator& op, const MicrobatchCounts& counts) {
    OperatorTime time{.compute_s = device.operator_seconds(stage, op, counts), .communication_s = op.communicates ? 0.25 : 0};
    if (op.kind == OperatorKind::embedding) time.compute_s += 0.25;
    if (op.kind == OperatorKind::head && counts.labelled > 0) time.compute_s += 0.5;
    return time;
  };
}

TEST(InterleavedRanks, OfADeviceThatIsNotThereTakeTheTimeThatTheSimulatorPredicts) {
  const ModelConfig config = eight_heads(8);
  const std::vector<RandomJob> jobs{lora_job("a", 1, 4, 0, {"all-linear"}, {30, 20, 240}), lora_job("chain", 2, 4, 0.1, {"all-linear"}, {600, 31}),
                                    bottleneck_job("b", 3, 8, Activation::relu, {90, 220}), lora_job("upper", 4, 4, 0, {"v_proj", "o_proj"}, {51})};
  for (const auto& [stages, share] : {std::pair(1, 0.0), {1, 0.2}, {2, 0.0}}) {
    const auto device = standing_device(share);
    std::vector<std::shared_ptr<const Backbone>> parts;
    for (int64_t index = 0; index < 2; ++index) parts.push_back(Backbone::emulated(config, at::kDouble, {index, 2}, device));
    const PipelineLayout layout = even_layout(config, stages, 1, 2);
    RankThreads ranks(parts, layout, 1);
    OneRound one(jobs, ranks, config);
    const StageGraphsOf graphs = graphs_of(config, layout, one.rounds.rounds, times_of(*device));
    const StepPlan& round = one.rounds.plans.front();
    const auto waiting = [&](const StepPlan& plan, size_t m, size_t stage) {
      const StageGraphs own = graphs(plan, m, stage);
      const auto seconds = [](const SubgraphDag& graph) {
        const std::vector<SubgraphDag> alone{graph};
        return simulate_launches(alone, task_by_task(alone), {.overlap = false}).makespan_s;
      };
      return StageCost{seconds(own.forward), seconds(own.backward), 1};
    };
    std::vector<RankTimes> times;
    std::vector<double> predicted_s;
    double planned_exposure_s = 0;
    for (const Interleave interleave : {Interleave::never, Interleave::always}) {
      const RankPlan plan = plan_ranks({round}, layout, waiting,
                                       {.order = RankOrder::automatic, .cluster = {}, .bytes_per_token = {1, 1}, .optimizer_s = {0.5, 0.5, 0.25, 0.5},
                                        .interleave = interleave, .graphs = graphs, .rates = device->rates});
      ranks.run(plan, one.rounds.rounds);
      times.push_back(ranks.times());
      predicted_s.push_back(plan.predicted.makespan_s);
      for (const PipelineClock& clock : plan.clocks) {
        std::vector<SubgraphDag> forward, backward;
        for (const int32_t m : clock.microbatches) {
          StageGraphs own = graphs(round, static_cast<size_t>(m), 0);
          forward.push_back(std::move(own.forward));
          backward.push_back(std::move(own.backward));
        }
        if (stages > 1) continue;
        planned_exposure_s += simulate_launches(forward, clock.stages[0].forward, device->rates).exposed_s() +
                              simulate_launches(backward, clock.stages[0].backward, device->rates).exposed_s();
      }
    }
    for (size_t run = 0; run < 2; ++run) {
      EXPECT_NEAR(times[run].seconds, predicted_s[run], (stages == 1 && share == 0 ? 1e-9 : 0.02) * predicted_s[run]) << stages << " stages, share " << share;
      EXPECT_EQ(times[run].ranks[0].exposed_s, times[run].ranks[1].exposed_s);
    }
    EXPECT_LT(times[1].ranks[0].exposed_s, 0.6 * times[0].ranks[0].exposed_s);
    if (stages > 1) continue;  // a pipeline of fewer, larger microbatches
    EXPECT_LT(times[1].seconds, times[0].seconds);
    // Sums of embeddings, heads and gradients are waited for in any case.
    double others_s = 0;
    for (size_t m = 0; m < round.microbatches.size(); ++m) others_s += 0.75;
    others_s += 0.5 * 3 + 0.25;
    EXPECT_NEAR(times[1].ranks[0].exposed_s, planned_exposure_s + others_s, 0.02 * times[0].ranks[0].exposed_s);
  }
}

class Trouble : public std::exception {};

TEST(InterleavedRanks, ThatBreakOffWhileSumsAreUnderWayGoOnAfterwards) {
  const ModelConfig config = eight_heads(2);
  const auto parts = divided_parts(config, 2, at::kDouble);
  RankThreads ranks(parts, even_layout(config, 1, 1, 2), 1);
  const auto losses_of = [&](int64_t limit) {
    OneRound one(three_jobs(), ranks, config);
    const StepPlan& plan = one.rounds.plans.front();
    const RankPlan interleaved = plan_interleaved_round(plan, one.rounds.rounds, config, ranks.layout());
    int64_t count = 0;
    ranks.observe([&](int32_t rank, const Operator&) {
      if (rank == 1 && ++count == limit) throw Trouble();
    });
    bool broke_off = false;
    try {
      ranks.run(interleaved, one.rounds.rounds);
    } catch (const Trouble&) {
      broke_off = true;
    }
    ranks.observe({});
    EXPECT_EQ(broke_off, limit > 0);
    std::vector<double> losses;
    for (const JobRound& round : one.rounds.rounds) losses.push_back(round.loss());
    return losses;
  };
  const std::vector<double> expected = losses_of(0);
  for (int64_t limit = 3; limit < 70; limit += 7) {
    losses_of(limit);
    EXPECT_EQ(losses_of(0), expected) << "after one that broke off after " << limit << " operators";
  }
}

}  // namespace
}  // namespace cotune
