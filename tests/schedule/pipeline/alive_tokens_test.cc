#include "schedule/pipeline/alive_tokens.h"

#include <gtest/gtest.h>

#include "schedule/memory/worst_case.h"
#include "schedule/pipeline/divided_rounds.h"
#include "schedule/random_batches.h"
#include "schedule/small_model.h"

namespace cotune {
namespace {

TEST(AliveAtMost, IsBoundedByTheWorstCaseOfRandomRounds) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Dice dice(mix_key(50, seed));
    const std::vector<BatchShape> round = random_round(dice);
    const PackingPolicy policy = random_policy(dice);
    const std::vector<JobFootprint> jobs = footprints_of(round);
    const WorstCase alive = alive_at_most(plan_step(round, policy));
    int64_t most_alive = 0;
    for (size_t i = 0; i < jobs.size(); ++i) {
      most_alive = std::max(most_alive, worst_case(jobs, i, policy).alive_tokens);
    }
    ASSERT_GT(alive.alive_tokens, 0);
    ASSERT_LE(alive.alive_tokens, most_alive) << "seed " << seed;
    ASSERT_GE(alive.alive_tokens, alive.microbatch_tokens);
  }
}

TEST(AliveAtMost, OfAChainIsTheWholeRow) {
  const StepPlan plan = plan_step(std::vector<BatchShape>{{.row_lengths = {1000}}}, {.token_budget = 256});
  EXPECT_EQ(alive_at_most(plan), (WorstCase{.microbatch_tokens = 256, .alive_tokens = 1000, .chain_tokens = 1000}));
}

/// Five layers: two on the first of two ranks, three on the second.
RankPlan on_two_ranks(std::vector<StepPlan> rounds, RankOrder order) {
  return plan_ranks(std::move(rounds), pipeline(2, test_layer_count), by_tokens, {.order = order, .most_in_flight = 2});
}

WorstCase alive_on_two(const RankPlan& plan, bool are_processes) {
  const PipelineLayout layout = pipeline(2, test_layer_count);
  return alive_at_most({&plan, 1}, {&layout, 1}, are_processes);
}

TEST(AliveAtMost, OnRanksCountsATokenForTheLayersThatHoldIt) {
  const PackingPolicy policy{.token_budget = 256, .layer_count = test_layer_count};
  const RankPlan chain = on_two_ranks({plan_step(std::vector<BatchShape>{{.row_lengths = {1000}}}, policy)}, RankOrder::automatic);
  EXPECT_EQ(alive_on_two(chain, false), (WorstCase{256, 1000, 1000}));
  EXPECT_EQ(alive_on_two(chain, true), (WorstCase{154, 600, 600})) << "of the rank with three layers of five";
  const RankPlan all = on_two_ranks({plan_step(std::vector<BatchShape>{{.row_lengths = {256, 256, 256, 256}}}, policy)}, RankOrder::gpipe);
  EXPECT_EQ(alive_on_two(all, false).alive_tokens, 1024);
  EXPECT_EQ(alive_on_two(all, true).alive_tokens, 615);
  const RankPlan few = on_two_ranks(all.rounds, RankOrder::one_f_one_b);
  EXPECT_EQ(alive_on_two(few, false).alive_tokens, (2 * 2 * 256 + 3 * 256 + 4) / 5) << "two on the first rank, one on the last";
}

TEST(AliveAtMost, OfRanksThatDivideLayersIsThatOfOneRank) {
  const PackingPolicy policy{.token_budget = 256, .layer_count = test_layer_count};
  const StepPlan plan = plan_step(std::vector<BatchShape>{{.row_lengths = {200, 200}}}, policy);
  const PipelineLayout layout = pipeline(1, test_layer_count, 2);
  const RankPlan divided = plan_ranks({plan}, layout, by_tokens, {.order = RankOrder::one_f_one_b});
  EXPECT_EQ(alive_at_most({&divided, 1}, {&layout, 1}, false), alive_at_most(plan));
  EXPECT_EQ(alive_at_most({&divided, 1}, {&layout, 1}, true), alive_at_most(plan));
}

TEST(AliveAtMost, OfReplicasIsTheirSumInOneProcessAndTheLargestOfProcesses) {
  const StepPlan large = plan_step(std::vector<BatchShape>{{.row_lengths = {200}}}, {.token_budget = 256, .layer_count = test_layer_count});
  const StepPlan small = plan_step(std::vector<BatchShape>{{.row_lengths = {50}}}, {.token_budget = 256, .layer_count = test_layer_count});
  const std::vector<PipelineLayout> layouts(2, pipeline(1, test_layer_count));
  const std::vector<RankPlan> plans{plan_ranks({large}, layouts[0], by_tokens, {}), plan_ranks({small}, layouts[1], by_tokens, {})};
  EXPECT_EQ(alive_at_most(plans, layouts, false).alive_tokens, 250);
  EXPECT_EQ(alive_at_most(plans, layouts, true).alive_tokens, 200);
}

// Orders may keep somewhat more where rows are chains, whose units are large, and where microbatches only pass through a stage.
TEST(AliveAtMost, OnRanksIsBoundedByTheirWorstCase) {
  ModelConfig config = small_model();
  config.layer_count = test_layer_count;
  int without_chains = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    Dice dice(mix_key(51, seed));
    std::vector<BatchShape> round = random_round(dice);
    for (BatchShape& batch : round) batch.lowest_layer = 0;
    const PackingPolicy policy = random_policy(dice);
    const auto stages = static_cast<int32_t>(dice.between(1, 3));
    const int64_t degree = dice.between(1, 2);
    const std::array orders{RankOrder::automatic, RankOrder::gpipe, RankOrder::one_f_one_b, RankOrder::lorapp, RankOrder::muxtune};
    const RankOrder order = orders[static_cast<size_t>(dice.between(0, 4))];
    const PipelineLayout layout = pipeline(stages, test_layer_count, degree);
    const bool are_processes = dice.between(0, 1) == 1;
    const MemoryFacts facts{.ranks = stages * degree,
                            .tensor_parallel = degree,
                            .process_stages = are_processes ? layout.stages : std::vector<StageShape>{},
                            .rank_order = order,
                            .clock_microbatches = degree > 1 ? most_in_a_clock : 1};
    std::vector<StepPlan> rounds{plan_step(round, policy)};
    for (BatchShape& batch : round) ++batch.step;
    if (order != RankOrder::gpipe) rounds.push_back(plan_step(round, policy));
    const RankPlan plan = plan_ranks(std::move(rounds), layout, by_tokens,
                                     {.order = order,
                                      .most_in_flight = stages,
                                      .interleave = degree > 1 ? Interleave::always : Interleave::never,
                                      .graphs = some_graphs});
    const WorstCase alive = alive_at_most({&plan, 1}, {&layout, 1}, are_processes);
    const WorstCase worst = worst_case_on_ranks(config, footprints_of(round), policy, facts);
    ASSERT_GT(alive.alive_tokens, 0);
    if (alive.chain_tokens > 0) continue;
    ASSERT_LE(alive.alive_tokens, worst.alive_tokens) << "seed " << seed;
    ++without_chains;
  }
  EXPECT_GT(without_chains, 150);
}

}  // namespace
}  // namespace cotune
