#include "engine/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

namespace cotune {
namespace {

const std::vector<double> four_logits = {std::log(0.1), std::log(0.4), std::log(0.2), std::log(0.3)};

std::map<int32_t, double> shares(const SamplingSettings& settings) {
  constexpr int draws = 20000;
  std::map<int32_t, double> counts;
  for (uint64_t i = 0; i < draws; ++i) counts[sample_token(four_logits, settings, i).value()] += 1.0 / draws;
  return counts;
}

TEST(Sampling, TemperatureZeroTakesTheLikeliestAndOfEqualOnesTheFirst) {
  EXPECT_EQ(sample_token(four_logits, {}, 0), 1);
  EXPECT_EQ(sample_token(std::vector<double>{1, 3, 2, 3}, {}, 0), 1);
}

TEST(Sampling, DrawsInProportionToTheProbabilities) {
  const auto seen = shares({.temperature = 1, .seed = 3});
  for (int32_t id = 0; id < 4; ++id) EXPECT_NEAR(seen.at(id), std::exp(four_logits[static_cast<size_t>(id)]), 0.015);
}

TEST(Sampling, TemperatureSharpensAndFlattens) {
  EXPECT_NEAR(shares({.temperature = 0.5}).at(1), 0.16 / 0.30, 0.015);
  EXPECT_NEAR(shares({.temperature = 1000}).at(1), 0.25, 0.015);
}

TEST(Sampling, TopKKeepsTheKLikeliest) {
  const auto seen = shares({.temperature = 1, .top_k = 2});
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_NEAR(seen.at(1), 0.4 / 0.7, 0.015);
  EXPECT_NEAR(seen.at(3), 0.3 / 0.7, 0.015);
  EXPECT_EQ(shares({.temperature = 1, .top_k = 9}).size(), 4u);
}

TEST(Sampling, TopPKeepsTheFewestThatReachTheShare) {
  EXPECT_EQ(shares({.temperature = 1, .top_p = 0.01}).size(), 1u);
  EXPECT_EQ(shares({.temperature = 1, .top_p = 0.69}).size(), 2u);
  EXPECT_EQ(shares({.temperature = 1, .top_p = 0.71}).size(), 3u);
  EXPECT_EQ(shares({.temperature = 1, .top_p = 1}).size(), 4u);
}

TEST(Sampling, MinPKeepsWhatHasItsShareOfTheLikeliest) {
  EXPECT_EQ(shares({.temperature = 1, .min_p = 0.24}).size(), 4u);
  EXPECT_EQ(shares({.temperature = 1, .min_p = 0.26}).size(), 3u);
  EXPECT_EQ(shares({.temperature = 1, .min_p = 0.8}).size(), 1u);
  EXPECT_EQ(shares({.temperature = 2, .min_p = 0.8}).size(), 2u) << "of the probabilities at that temperature";
}

TEST(Sampling, RepetitionPenaltyMakesWhatStandsInTheSequenceLessLikely) {
  const std::vector<double> logits = {2, 3, -1};
  const std::vector<int32_t> sequence = {1, 1, 2};
  EXPECT_EQ(sample_token(logits, {.repetition_penalty = 1.4}, 3, sequence), 1);
  EXPECT_EQ(sample_token(logits, {.repetition_penalty = 1.6}, 3, sequence), 0) << "once, however often the token stands there";
  EXPECT_EQ(sample_token(std::vector<double>{-2, -1.5}, {.repetition_penalty = 2}, 3, std::vector<int32_t>{1}), 0);
}

TEST(Sampling, AnswersHaveSeedsOfTheirOwn) {
  std::set<uint64_t> seeds;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    for (uint64_t prompt = 0; prompt < 16; ++prompt) {
      for (uint64_t sample = 0; sample < 16; ++sample) seeds.insert(answer_seed(seed, prompt, sample));
    }
  }
  EXPECT_EQ(seeds.size(), 4u * 16 * 16);
}

TEST(Sampling, TopKComesBeforeTopP) {
  // Of the three likeliest (0.4, 0.3, 0.2 of 0.9) two reach 0.7.
  EXPECT_EQ(shares({.temperature = 1, .top_k = 3, .top_p = 0.7}).size(), 2u);
}

TEST(Sampling, DependsOnSeedAndPositionAlone) {
  std::set<std::vector<int32_t>> sequences;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    std::vector<int32_t> first, again;
    for (uint64_t i = 0; i < 32; ++i) first.push_back(*sample_token(four_logits, {.temperature = 1, .seed = seed}, i));
    for (uint64_t i = 0; i < 32; ++i) again.push_back(*sample_token(four_logits, {.temperature = 1, .seed = seed}, i));
    EXPECT_EQ(first, again);
    sequences.insert(first);
  }
  EXPECT_EQ(sequences.size(), 8u);
}

TEST(Sampling, ImpossibleTokensAreNeverDrawn) {
  const double never = -std::numeric_limits<double>::infinity();
  for (uint64_t i = 0; i < 200; ++i) {
    EXPECT_EQ(sample_token(std::vector<double>{never, 0, never}, {.temperature = 5}, i), 1);
  }
}

TEST(Sampling, NothingIsChosenFromLogitsThatAreNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double temperature : {0.0, 1.0}) {
    EXPECT_FALSE(sample_token(std::vector<double>{0, std::nan(""), 1}, {.temperature = temperature}, 0));
    EXPECT_FALSE(sample_token(std::vector<double>{0, infinity}, {.temperature = temperature}, 0));
    EXPECT_FALSE(sample_token(std::vector<double>{-infinity, -infinity}, {.temperature = temperature}, 0));
  }
}

}  // namespace
}  // namespace cotune
