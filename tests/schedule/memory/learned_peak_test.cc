#include "schedule/memory/learned_peak.h"

#include <gtest/gtest.h>

#include "schedule/memory/admission.h"
#include "schedule/memory/peak_memory.h"
#include "schedule/memory/worst_case.h"
#include "schedule/small_model.h"

namespace cotune {
namespace {

JobFootprint lora_job(const ModelConfig& config, int32_t job, int64_t rows, int64_t longest) {
  return {.job = job, .adapters = lora_everywhere(config, job, 8), .row_count = rows, .longest_row = longest};
}

int64_t bytes_of_rounds(const MemoryEstimate& estimate) {
  return estimate.activations + estimate.chain_kv + estimate.workspace + estimate.logits;
}

class LearnedPeakOfRuns : public ::testing::Test {
 protected:
  const ModelConfig config = small_model();
  const MemoryFacts facts{.fragmentation = 1};
  const PackingPolicy policy{.token_budget = 512};
  const std::vector<JobFootprint> running{lora_job(config, 0, 4, 128), lora_job(config, 1, 4, 128)};
  const std::vector<JobFootprint> with_another{running[0], running[1], lora_job(config, 2, 4, 64)};
  const std::vector<int32_t> ids{0, 1};
  LearnedPeak learned{config, facts};

  void observe(int64_t tokens, double bytes_per_token) {
    learned.observe(ids, policy, {tokens, tokens, 0}, 10'000 + static_cast<int64_t>(bytes_per_token * static_cast<double>(tokens)));
  }
};

TEST_F(LearnedPeakOfRuns, IsTheBoundUntilEveryRunningJobHasSamples) {
  const MemoryEstimate bound = predict_memory(config, with_another, policy, facts);
  EXPECT_EQ(learned.predict(with_another, running, policy), bound);
  for (const int64_t tokens : {300, 400, 500}) observe(tokens, 100);
  EXPECT_EQ(learned.predict(with_another, running, policy), bound);
  observe(512, 100);
  EXPECT_LT(learned.predict(with_another, running, policy).total(), bound.total());
}

TEST_F(LearnedPeakOfRuns, ReplacesTheBoundOfTheRunningJobsByWhatTheyTook) {
  for (const int64_t tokens : {300, 350, 400, 450, 500}) observe(tokens, 100);
  const MemoryEstimate now = learned.predict(running, running, policy);
  EXPECT_NEAR(static_cast<double>(bytes_of_rounds(now)), 10'000 + 100 * 512, 100);
  const int64_t overshoot = bytes_of_rounds(predict_memory(config, running, policy, facts)) - bytes_of_rounds(now);
  EXPECT_GT(overshoot, 0);
  EXPECT_EQ(bytes_of_rounds(learned.predict(with_another, running, policy)),
            bytes_of_rounds(predict_memory(config, with_another, policy, facts)) - overshoot);
}

TEST_F(LearnedPeakOfRuns, RaisesABoundThatWasTooLow) {
  const MemoryEstimate bound = predict_memory(config, running, policy, facts);
  const double dear = 2.0 * static_cast<double>(bytes_of_rounds(bound)) / 512;
  for (const int64_t tokens : {300, 350, 400, 450, 500}) observe(tokens, dear);
  EXPECT_GT(learned.predict(running, running, policy).total(), bound.total());
}

TEST_F(LearnedPeakOfRuns, DoesNotTrustSamplesFarBelowTheWorstCase) {
  for (const int64_t tokens : {50, 100, 150, 200, 250}) observe(tokens, 100);
  EXPECT_EQ(learned.predict(with_another, running, policy), predict_memory(config, with_another, policy, facts));
  observe(256, 100);
  EXPECT_NE(learned.predict(with_another, running, policy), predict_memory(config, with_another, policy, facts));
}

TEST_F(LearnedPeakOfRuns, ForgetsWhatItLearnedUnderAnotherPolicy) {
  for (const int64_t tokens : {300, 350, 400, 450, 500}) observe(tokens, 100);
  PackingPolicy halved = policy;
  halved.token_budget /= 2;
  EXPECT_EQ(learned.predict(running, running, halved), predict_memory(config, running, halved, facts));
  learned.observe(ids, halved, {256, 256, 0}, 10'000);
  EXPECT_EQ(learned.sample_count(0), 1u);
}

TEST_F(LearnedPeakOfRuns, ExpectsOfARoundWhatThoseBeforeItTook) {
  for (const int64_t tokens : {300, 350, 400}) observe(tokens, 100);
  const WorstCase alive{200, 200, 0};
  EXPECT_FALSE(learned.expect(running, policy, alive).has_value()) << "three rounds are too few";
  observe(450, 100);
  const std::optional<RoundPeak> expected = learned.expect(running, policy, alive);
  ASSERT_TRUE(expected.has_value());
  EXPECT_NEAR(static_cast<double>(expected->learned), 10'000 + 100 * 200, 10);
  EXPECT_EQ(expected->by_shapes, bytes_of_rounds(predict_memory(config, running, policy, facts)));
  EXPECT_FALSE(learned.expect(with_another, policy, alive).has_value()) << "one of them has made no round";
}

/// The model divided among two ranks.
class LearnedPeakOfRanks : public LearnedPeakOfRuns {
 protected:
  static MemoryFacts of_two(std::vector<StageShape> process_stages) {
    MemoryFacts facts{.ranks = 2, .process_stages = std::move(process_stages), .fragmentation = 1};
    return facts;
  }
  void expect_to_go_by_the_worst_case(const MemoryFacts& own, int64_t alive) {
    EXPECT_EQ(worst_case_on_ranks(config, running, policy, own).alive_tokens, alive);
    learned = LearnedPeak(config, own);
    const int64_t half = (alive + 1) / 2;
    for (const int64_t tokens : {half - 3, half - 2, half - 1, half - 1}) observe(tokens, 10);
    EXPECT_FALSE(learned.correction(running, policy).has_value());
    observe(half, 10);
    const MemoryEstimate now = learned.predict(running, running, policy);
    EXPECT_NEAR(static_cast<double>(bytes_of_rounds(now)), 10'000 + 10 * static_cast<double>(alive), 10);
    EXPECT_LT(now.total(), predict_memory(config, running, policy, own).total());
  }
};

TEST_F(LearnedPeakOfRanks, GoesByWhatAllThreadsMayHaveAtOnce) { expect_to_go_by_the_worst_case(of_two({}), 1024); }

// The first of three layers, and the others: each process may have two microbatches of 512 tokens.
TEST_F(LearnedPeakOfRanks, GoesByWhatTheProcessWithMostLayersMayHave) {
  const std::vector<StageShape> stages{{.first_layer = 0, .last_layer = 1, .has_head = false},
                                       {.first_layer = 1, .last_layer = 3, .has_embedding = false}};
  expect_to_go_by_the_worst_case(of_two(stages), (1024 * 2 + 2) / 3);
}

TEST_F(LearnedPeakOfRanks, OfReplicasInOneProcessCountsEveryRowOnce) {
  MemoryFacts replicas{.ranks = 2, .replicas = {{.ranks = 1}, {.ranks = 1}}, .fragmentation = 1};
  EXPECT_EQ(worst_case_on_ranks(config, running, policy, replicas).alive_tokens, 1024) << "two microbatches of 512, of 1,024 tokens in all";
  const std::vector<JobFootprint> few{lora_job(config, 0, 2, 128)};
  EXPECT_EQ(worst_case_on_ranks(config, few, policy, replicas).alive_tokens, 256);
}

TEST_F(LearnedPeakOfRuns, AdmitsAJobThatTheBoundKeepsWaiting) {
  const auto predict = [&](std::span<const int32_t> jobs) {
    std::vector<JobFootprint> footprints;
    for (const int32_t job : jobs) footprints.push_back(with_another[static_cast<size_t>(job)]);
    return learned.predict(footprints, running, policy);
  };
  const std::vector<AdmissionCandidate> candidates{{0, 0, 0, true}, {1, 0, 1, true}, {2, 0, 2, false}};
  const int64_t limit = predict_memory(config, running, policy, facts).total();
  EXPECT_EQ(admit(candidates, limit, predict).waiting, (std::vector<int32_t>{2}));
  for (const int64_t tokens : {300, 350, 400, 450, 500}) observe(tokens, 100);
  EXPECT_EQ(admit(candidates, limit, predict).admitted, (std::vector<int32_t>{0, 1, 2}));
}

}  // namespace
}  // namespace cotune
