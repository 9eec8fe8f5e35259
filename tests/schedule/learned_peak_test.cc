#include "schedule/learned_peak.h"

#include <gtest/gtest.h>

#include "schedule/admission.h"
#include "schedule/random_batches.h"
#include "schedule/small_model.h"

namespace cotune {
namespace {

JobFootprint lora_job(const ModelConfig& config, int32_t job, int64_t rows, int64_t longest) {
  return {.job = job, .adapters = lora_everywhere(config, job, 8), .row_count = rows, .longest_row = longest};
}

int64_t bytes_of_rounds(const MemoryEstimate& estimate) {
  return estimate.activations + estimate.chain_kv + estimate.workspace + estimate.logits;
}

TEST(AliveAtMost, IsBoundedByTheWorstCaseOfRandomRounds) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Dice dice(mix_key(50, seed));
    const std::vector<BatchShape> round = random_round(dice);
    const PackingPolicy policy = random_policy(dice);
    std::vector<JobFootprint> jobs;
    for (const BatchShape& batch : round) {
      jobs.push_back({.job = batch.job,
                      .row_count = static_cast<int64_t>(batch.row_lengths.size()),
                      .longest_row = *std::max_element(batch.row_lengths.begin(), batch.row_lengths.end())});
    }
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
  const int64_t overshoot = predict_memory(config, running, policy, facts).total() - now.total();
  EXPECT_GT(overshoot, 0);
  EXPECT_EQ(learned.predict(with_another, running, policy).total(),
            predict_memory(config, with_another, policy, facts).total() - overshoot);
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
