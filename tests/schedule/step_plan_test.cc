#include "schedule/step_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "schedule/random_batches.h"
#include "schedule/step_plan_json.h"
#include "schedule/token_counts.h"
#include "schedule/token_recount.h"
#include "schedule/verify_step_plan.h"

namespace cotune {
namespace {

std::vector<Atom> without_pads(std::vector<Atom> atoms) {
  for (Atom& atom : atoms) {
    for (Segment& segment : atom.segments) segment.pad = 0;
  }
  return atoms;
}

std::vector<Atom> atoms_of(const StepPlan& plan, int32_t job) {
  std::vector<Atom> atoms;
  for (const Microbatch& microbatch : plan.microbatches) {
    for (const Atom& atom : microbatch.atoms) {
      if (atom.job == job) atoms.push_back(atom);
    }
  }
  std::sort(atoms.begin(), atoms.end(), [](const Atom& a, const Atom& b) { return a.index < b.index; });
  return atoms;
}

std::set<int32_t> jobs_of(const Microbatch& microbatch) {
  std::set<int32_t> jobs;
  for (const Atom& atom : microbatch.atoms) jobs.insert(atom.job);
  return jobs;
}

/// Microbatches alive together, as their sets, in order of work.
std::vector<std::vector<int32_t>> groups_of(const StepPlan& plan) {
  std::vector<std::vector<int32_t>> groups;
  size_t alive = 0;
  for (const Action& action : plan.actions) {
    if (action.kind == ActionKind::forward) {
      if (alive == 0) groups.emplace_back();
      groups.back().push_back(action.microbatch);
      ++alive;
    }
    if (action.kind == ActionKind::free) --alive;
  }
  return groups;
}

std::string text_of(const StepPlan& plan) {
  std::string text;
  for (const Action& action : plan.actions) {
    if (!text.empty()) text += ' ';
    text += to_string(action.kind).substr(0, 1) + (action.kind == ActionKind::free ? "ree" : "") +
            std::to_string(action.kind == ActionKind::optimizer_step ? action.job : action.microbatch);
    if (action.first_layer >= 0) text += "." + std::to_string(action.first_layer);
  }
  return text;
}

TEST(PlanStep, FusesJobsUpToTheBudgetAndStepsEachAfterItsLastAtom) {
  const std::vector<BatchShape> round = {{.job = 0, .row_lengths = {200, 200, 200}}, {.job = 1, .row_lengths = {60}}};
  const StepPlan plan = plan_step(round, {.token_budget = 512});
  ASSERT_EQ(plan.microbatches.size(), 2u);
  EXPECT_EQ(plan.microbatches[0].token_count(), 460);
  EXPECT_EQ(plan.microbatches[0].atoms[0].index, 1);  // from the end of the job's atoms
  EXPECT_EQ(text_of(plan), "f0 b0 free0 o1 f1 b1 free1 o0");
}

std::vector<int64_t> tokens_of_microbatches(const StepPlan& plan) {
  std::vector<int64_t> tokens;
  for (const Microbatch& microbatch : plan.microbatches) tokens.push_back(microbatch.token_count());
  return tokens;
}

TEST(PlanStep, CutsAStepIntoAtLeastAsManyMicrobatchesAsAskedForAsEvenAsUnitsAllow) {
  const std::vector<BatchShape> round = {{.job = 0, .row_lengths = std::vector<int64_t>(8, 256)}};
  const auto tokens = [&](int64_t least) { return tokens_of_microbatches(plan_step(round, {.token_budget = 2048, .least_microbatches = least})); };
  EXPECT_EQ(tokens(1), (std::vector<int64_t>{2048}));
  EXPECT_EQ(tokens(2), (std::vector<int64_t>{1024, 1024}));
  EXPECT_EQ(tokens(3), (std::vector<int64_t>{768, 768, 512}));
  EXPECT_EQ(tokens(4), (std::vector<int64_t>(4, 512)));
  EXPECT_EQ(tokens(100), (std::vector<int64_t>(8, 256)));
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    const std::vector<BatchShape> batches = random_round(dice);
    PackingPolicy policy = random_policy(dice);
    policy.sharing = Sharing::hybrid;
    policy.hybrid_tasks.clear();
    policy.least_microbatches = 1;
    const StepPlan whole = plan_step(batches, policy);
    int64_t units = 0;
    for (const BatchShape& batch : batches) {
      for (const Atom& atom : atoms_of(whole, batch.job)) units += atom.segments.front().position == 0;
    }
    const bool has_chain = std::ranges::any_of(groups_of(whole), [](const auto& group) { return group.size() > 1; });
    policy.least_microbatches = dice.between(2, 12);
    const StepPlan split = plan_step(batches, policy);
    verify(split, test_layer_count);
    EXPECT_GE(split.microbatches.size(), whole.microbatches.size());
    if (has_chain) continue;
    EXPECT_GE(std::ssize(split.microbatches), std::min(policy.least_microbatches, units));
    for (const BatchShape& batch : batches) {
      std::vector<Atom> atoms = atoms_of(whole, batch.job), again = atoms_of(split, batch.job);
      EXPECT_TRUE(without_pads(std::move(atoms)) == without_pads(std::move(again))) << "the sums of job " << batch.job << " changed";
    }
  }
}

TEST(PlanStep, AChainGoesForwardInOrderAndBackwardInReverse) {
  const std::vector<BatchShape> round = {{.job = 0, .row_lengths = {600}}, {.job = 1, .row_lengths = {150, 90}}};
  const StepPlan plan = plan_step(round, {.token_budget = 256});
  EXPECT_EQ(text_of(plan), "f2 f1 f0 b0 free0 b1 free1 b2 free2 o0 f3 b3 free3 o1");
  const StepPlan roomy = plan_step(round, {.token_budget = 400});  // the other job rides in the chain's gaps
  EXPECT_EQ(text_of(roomy), "f1 f0 b0 free0 b1 free1 o0 f2 b2 free2 o1");
}

TEST(PlanStep, RecomputesEachLayerBeforeItsBackwardDownToTheLowestAdapter) {
  const std::vector<BatchShape> round = {{.job = 0, .row_lengths = {20}, .lowest_layer = 2},
                                         {.job = 1, .row_lengths = {20}, .lowest_layer = 1}};
  const StepPlan plan = plan_step(round, {.recompute = true, .layer_count = 4});
  EXPECT_EQ(text_of(plan), "f0 b0.4 r0.3 b0.3 r0.2 b0.2 r0.1 b0.1 free0 o0 o1");
}

TEST(PlanStep, SeparateFinishesAJobBeforeTheNextAndTemporalTakesTurns) {
  const std::vector<BatchShape> round = {{.job = 0, .row_lengths = {200, 200}}, {.job = 1, .row_lengths = {200, 200}}};
  EXPECT_EQ(text_of(plan_step(round, {.sharing = Sharing::separate, .token_budget = 256})),
            "f0 b0 free0 f1 b1 free1 o0 f2 b2 free2 f3 b3 free3 o1");
  const StepPlan turns = plan_step(round, {.sharing = Sharing::temporal, .token_budget = 256});
  EXPECT_EQ(text_of(turns), "f0 b0 free0 f1 b1 free1 f2 b2 free2 o0 f3 b3 free3 o1");
  EXPECT_EQ(turns.microbatches[1].atoms[0].job, 1);
}

TEST(PlanStep, HybridTasksGoOneAfterTheOtherAndShareNoMicrobatch) {
  const std::vector<BatchShape> round = {
      {.job = 0, .row_lengths = {60}}, {.job = 1, .row_lengths = {60}}, {.job = 2, .row_lengths = {60}}, {.job = 3, .row_lengths = {60}}};
  const StepPlan plan = plan_step(round, {.hybrid_tasks = {{2, 0}, {7, 3}}});  // 7 has no rows; 1 stands in none
  ASSERT_EQ(plan.microbatches.size(), 3u);
  EXPECT_EQ(jobs_of(plan.microbatches[0]), (std::set<int32_t>{0, 2}));
  EXPECT_EQ(jobs_of(plan.microbatches[1]), (std::set<int32_t>{3}));
  EXPECT_EQ(jobs_of(plan.microbatches[2]), (std::set<int32_t>{1}));
  EXPECT_EQ(text_of(plan), "f0 b0 free0 o0 o2 f1 b1 free1 o3 f2 b2 free2 o1");
  verify(plan, test_layer_count);
}

TEST(PlanStep, BatchAllIsOneMicrobatchWhateverTheBudget) {
  const std::vector<BatchShape> round = {{.job = 0, .row_lengths = {2000, 5}}, {.job = 1, .row_lengths = {90}}};
  const StepPlan plan = plan_step(round, {.sharing = Sharing::batch_all, .token_budget = 256});
  EXPECT_EQ(plan.microbatches.size(), 1u);
  verify(plan, test_layer_count);
}

TEST(PlanStep, ManySmallJobsShareOneMicrobatch) {
  std::vector<BatchShape> round;
  for (int32_t job = 0; job < 16; ++job) round.push_back({.job = job, .row_lengths = {64 - job}});
  EXPECT_EQ(plan_step(round, {}).microbatches.size(), 1u);
}

TEST(PlanStep, NamesTheBudgetThatIsTooSmallForAnAtom) {
  const std::vector<BatchShape> round = {{.row_lengths = {250}}};
  try {
    plan_step(round, {.token_budget = 128});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("token_budget: must be at least 250"), std::string::npos) << error.what();
  }
  EXPECT_THROW(plan_step(round, {.layout = Layout::chunked, .token_budget = 256, .chunk_size = 512}), UserError);
}

TEST(PlanStep, NoJobsGiveAnEmptyPlan) {
  const StepPlan plan = plan_step({}, {});
  EXPECT_TRUE(plan.microbatches.empty() && plan.actions.empty());
  verify(plan, test_layer_count);
}

TEST(PlanStep, IsRightForRandomRoundsUnderEveryPolicy) {
  for (uint64_t seed = 0; seed < 6000; ++seed) {
    Dice dice(mix_key(3, seed));
    const std::vector<BatchShape> round = random_round(dice);
    const PackingPolicy policy = random_policy(dice);
    const StepPlan plan = plan_step(round, policy);
    ASSERT_NO_THROW(verify(plan, test_layer_count)) << "seed " << seed;
    ASSERT_EQ(plan, plan_step(round, policy));
  }
}

TEST(PlanStep, CutsTheSameAtomsWhateverTheNeighboursSharingAndBudget) {
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    Dice dice(mix_key(4, seed));
    const std::vector<BatchShape> round = random_round(dice);
    const PackingPolicy policy = random_policy(dice);
    const StepPlan together = plan_step(round, policy);
    for (const BatchShape& batch : round) {
      const AtomRule rule{.layout = policy.layout, .chunk_size = policy.chunk_size};
      std::vector<Atom> atoms = atoms_of(together, batch.job);
      if (policy.layout == Layout::padded) atoms = without_pads(atoms);  // pads depend on the mix
      ASSERT_EQ(atoms, cut_into_atoms(batch, rule)) << "seed " << seed;
    }
  }
}

TEST(PlanStep, KeepsOneMicrobatchAliveOrThoseOfOneChain) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Dice dice(mix_key(5, seed));
    const std::vector<BatchShape> round = random_round(dice);
    const StepPlan plan = plan_step(round, random_policy(dice));
    for (const std::vector<int32_t>& group : groups_of(plan)) {
      if (group.size() == 1) continue;
      std::map<std::pair<int32_t, int32_t>, size_t> rows;
      for (int32_t m : group) {
        for (const RowPart& part : row_parts(plan.microbatches[static_cast<size_t>(m)])) {
          ++rows[{part.job, part.row}];
        }
      }
      // Every one of them is linked to the next by a row; layout ragged has one row through all.
      size_t most = 0;
      for (const auto& [row, count] : rows) most = std::max(most, count);
      if (plan.policy.layout != Layout::chunked) {
        ASSERT_EQ(most, group.size()) << "seed " << seed;
      } else {
        ASSERT_GE(most, 2u) << "seed " << seed;
      }
    }
  }
}

TEST(PlanStep, LeavesNoRoomThatALaterUnitWouldHaveFitted) {
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    Dice dice(mix_key(6, seed));
    const std::vector<BatchShape> round = random_round(dice);
    const PackingPolicy policy{.token_budget = 256 * dice.between(1, 8)};
    const StepPlan plan = plan_step(round, policy);
    const std::vector<std::vector<int32_t>> groups = groups_of(plan);
    for (size_t g = 0; g + 1 < groups.size(); ++g) {
      if (groups[g].size() > 1) continue;
      const Microbatch& microbatch = plan.microbatches[static_cast<size_t>(groups[g][0])];
      // The next group's own units start with whole atoms; none of its single-atom jobs fits into this one.
      for (int32_t m : groups[g + 1]) {
        if (groups[g + 1].size() > 1) break;
        for (int32_t job : jobs_of(plan.microbatches[static_cast<size_t>(m)])) {
          int64_t tokens = 0;
          for (const Atom& atom : plan.microbatches[static_cast<size_t>(m)].atoms) {
            if (atom.job == job) tokens += atom.token_count();
          }
          ASSERT_GT(microbatch.token_count() + tokens, policy.token_budget) << "seed " << seed;
        }
      }
    }
  }
}

TEST(PlanStep, UsesFewMicrobatchesForShortRows) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Dice dice(mix_key(7, seed));
    std::vector<BatchShape> round;
    int64_t tokens = 0;
    for (int32_t job = 0; job < 8; ++job) {
      round.push_back({.job = job});
      for (int64_t row = 0; row < 8; ++row) round.back().row_lengths.push_back(dice.between(8, 128));
      tokens += std::accumulate(round.back().row_lengths.begin(), round.back().row_lengths.end(), int64_t{0});
    }
    const auto count = static_cast<int64_t>(plan_step(round, {.token_budget = 1024}).microbatches.size());
    EXPECT_LE(count, (tokens + 1023) / 1024 + 1) << "seed " << seed;
  }
}

TEST(PlanStepWithSegments, MakesChainsOfTinyChunks) {
  for (int64_t segment : {1, 16, 64, 257}) {
    const std::vector<BatchShape> round = {{.job = 0, .row_lengths = {300, 7}}, {.job = 1, .row_lengths = {1, 90}}};
    const StepPlan plan = plan_step_with_segments(round, {.token_budget = segment}, segment);
    verify(plan, test_layer_count);
    EXPECT_GE(static_cast<int64_t>(plan.microbatches.size()), (398 + segment - 1) / segment);
    verify(plan_step_with_segments(round, {.token_budget = 1024}, segment), test_layer_count);
  }
}

TEST(CountTokens, AddUpToWhatIsProcessedOfEveryJobInEveryLayout) {
  TokenCounts together;
  int64_t jobs = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Dice dice(mix_key(8, seed));
    const std::vector<BatchShape> round = random_round(dice);
    const StepPlan plan = plan_step(round, random_policy(dice));
    const std::vector<TokenCounts> counts = count_tokens(plan);
    std::map<int32_t, TokenCounts> recounted = testing::recount_tokens(plan);
    std::map<int32_t, int64_t> in_microbatches;
    for (const Microbatch& microbatch : plan.microbatches) {
      for (const Atom& atom : microbatch.atoms) in_microbatches[atom.job] += atom.token_count();
    }
    ASSERT_EQ(counts.size(), round.size());
    for (size_t i = 0; i < round.size(); ++i, ++jobs) {
      const int32_t job = round[i].job;
      const int64_t real = std::accumulate(round[i].row_lengths.begin(), round[i].row_lengths.end(), int64_t{0});
      ASSERT_EQ(counts[i].real, real) << "seed " << seed << ", job " << job;
      ASSERT_EQ(counts[i], recounted[job]) << "seed " << seed << ", job " << job;
      ASSERT_EQ(counts[i].processed(), in_microbatches[job]) << "seed " << seed << ", job " << job;
      if (plan.policy.layout == Layout::ragged) {
        ASSERT_EQ(counts[i].processed(), real);
      }
      if (plan.policy.layout == Layout::chunked) {
        ASSERT_EQ(counts[i].processed() % plan.policy.chunk_size, 0);
      }
      together += counts[i];
    }
  }
  EXPECT_GT(jobs, 8000);
  EXPECT_GT(std::min({together.pad_to_row, together.pad_to_mix, together.pad_to_chunk}), 0);
}

TEST(CountTokens, BillPadsToTheJobsOwnLongestRowAndTheRestToTheMix) {
  const std::vector<BatchShape> round = {{.job = 0, .row_lengths = {10, 4}}, {.job = 1, .row_lengths = {300, 100}}};
  const std::vector<TokenCounts> fused =
      count_tokens(plan_step(round, {.sharing = Sharing::batch_all, .layout = Layout::padded}));
  EXPECT_EQ(fused[0], (TokenCounts{.real = 14, .pad_to_row = 6, .pad_to_mix = 580}));
  EXPECT_EQ(fused[1], (TokenCounts{.real = 400, .pad_to_row = 200}));
  const std::vector<TokenCounts> alone =
      count_tokens(plan_step(round, {.sharing = Sharing::separate, .layout = Layout::padded}));
  EXPECT_EQ(alone[0], (TokenCounts{.real = 14, .pad_to_row = 6}));
  const std::vector<TokenCounts> chunked = count_tokens(plan_step(round, {.layout = Layout::chunked}));
  EXPECT_EQ(chunked[0], (TokenCounts{.real = 14, .pad_to_chunk = 50}));
  EXPECT_EQ(chunked[1], (TokenCounts{.real = 400, .pad_to_chunk = 48}));
}

TEST(StepPlanJson, RoundTripsForRandomPlans) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Dice dice(mix_key(9, seed));
    const std::vector<BatchShape> round = random_round(dice);
    const StepPlan plan = plan_step(round, random_policy(dice));
    ASSERT_EQ(step_plan_from_json(nlohmann::json::parse(to_json(plan).dump())), plan);
  }
}

TEST(StepPlanJson, NamesWhatIsWrong) {
  nlohmann::json object = nlohmann::json::parse(to_json(plan_step({}, {})).dump());
  object["policy"]["sharing"] = "alone";
  EXPECT_THROW(step_plan_from_json(object), UserError);
  object.erase("policy");
  EXPECT_THROW(step_plan_from_json(object), UserError);
  EXPECT_THROW(step_plan_from_json(nlohmann::json(3)), UserError);
}

}  // namespace
}  // namespace cotune
