#include "schedule/memory/memory_fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "schedule/random_batches.h"

namespace cotune {
namespace {

FittedSample sample_of(int64_t batch, int64_t length, const std::array<double, 3>& beta, double factor = 1) {
  const auto x1 = static_cast<double>(batch * length);
  const auto x2 = x1 * static_cast<double>(length);
  return {x1, x2, (beta[0] + beta[1] * x1 + beta[2] * x2) * factor};
}

TEST(MemoryFit, RecoversNoiselessCoefficients) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Dice dice(mix_key(40, seed));
    const std::array<double, 3> beta = {static_cast<double>(dice.between(0, 1) * dice.between(0, 1'000'000'000)),
                                        static_cast<double>(dice.between(0, 1) * dice.between(1, 500'000)),
                                        static_cast<double>(dice.between(0, 1) * dice.between(1, 300))};
    MemoryFit fit;
    const int64_t points = dice.between(6, 60);
    for (int64_t i = 0; i < points; ++i) fit.add(sample_of(1 + i % 7, 16 + 37 * (i % 11), beta));
    const MemoryFitResult result = fit.fit();
    for (const auto& [batch, length] : {std::pair<int64_t, int64_t>{3, 100}, {8, 900}}) {
      const FittedSample expected = sample_of(batch, length, beta);
      EXPECT_NEAR(result.predict(expected.x1, expected.x2), expected.bytes, 1e-9 * expected.bytes + 1e-3);
    }
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(result.beta[i], beta[i], 1e-7 * beta[i] + 1e-2) << "seed " << seed;
    EXPECT_LT(result.mean_relative_error, 1e-9);
  }
}

TEST(MemoryFit, NeverGivesANegativeCoefficient) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Dice dice(mix_key(41, seed));
    MemoryFit fit;
    const int64_t points = dice.between(0, 12);
    for (int64_t i = 0; i < points; ++i) {
      fit.add({static_cast<double>(dice.between(0, 4000)), static_cast<double>(dice.between(0, 1'000'000)),
               static_cast<double>(dice.between(0, 1'000'000'000))});
    }
    const MemoryFitResult result = fit.fit();
    for (double beta : result.beta) EXPECT_GE(beta, 0);
  }
}

/// No point of a fine grid around the solution is better: it is the constrained optimum.
TEST(MemoryFit, IsTheLeastSquaresOptimumAmongNonnegativeCoefficients) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Dice dice(mix_key(42, seed));
    std::vector<FittedSample> samples;
    MemoryFit fit;
    for (int i = 0; i < 8; ++i) {
      samples.push_back({static_cast<double>(dice.between(0, 9)), static_cast<double>(dice.between(0, 9)),
                         static_cast<double>(dice.between(0, 99))});
      fit.add(samples.back());
    }
    const auto error_of = [&](const std::array<double, 3>& beta) {
      double sum = 0;
      for (const FittedSample& s : samples) sum += std::pow(beta[0] + beta[1] * s.x1 + beta[2] * s.x2 - s.bytes, 2);
      return sum;
    };
    const MemoryFitResult result = fit.fit();
    const double best = error_of(result.beta);
    for (int step = 0; step < 27; ++step) {
      for (double size : {1e-3, 0.1, 3.0}) {
        std::array<double, 3> other = result.beta;
        other[0] = std::max(0.0, other[0] + size * (step % 3 - 1));
        other[1] = std::max(0.0, other[1] + size * (step / 3 % 3 - 1));
        other[2] = std::max(0.0, other[2] + size * (step / 9 - 1));
        EXPECT_GE(error_of(other), best - 1e-7) << "seed " << seed;
      }
    }
  }
}

TEST(MemoryFit, MarginCoversEverySample) {
  MemoryFit fit;
  for (uint64_t i = 0; i < 40; ++i) {
    fit.add(sample_of(1 + static_cast<int64_t>(i % 8), 20 + static_cast<int64_t>(11 * i), {1e6, 4e5, 10},
                      1 + 0.002 * (uniform(7, i) - 0.5)));
  }
  const MemoryFitResult result = fit.fit();
  EXPECT_LT(result.mean_relative_error, 0.0025);
  EXPECT_GT(result.max_underestimate, 0);
  for (uint64_t i = 0; i < 40; ++i) {
    const FittedSample s = sample_of(1 + static_cast<int64_t>(i % 8), 20 + static_cast<int64_t>(11 * i), {1e6, 4e5, 10},
                                     1 + 0.002 * (uniform(7, i) - 0.5));
    EXPECT_GE(result.predict_with_margin(s.x1, s.x2), s.bytes * (1 - 1e-12));
  }
}

TEST(MemoryFit, ThreePointsDetermineIt) {
  MemoryFit fit;
  for (int64_t length : {32, 100, 500}) fit.add(sample_of(2, length, {5e6, 3e5, 40}));
  EXPECT_LT(fit.fit().mean_relative_error, 1e-9);
}

TEST(MemoryFit, OneLengthIsFittedWhereItWasSeen) {
  MemoryFit fit;
  for (int i = 0; i < 5; ++i) fit.add(sample_of(2, 64, {5e6, 3e5, 40}));
  EXPECT_LT(fit.fit().mean_relative_error, 1e-9);
  EXPECT_EQ(MemoryFit().fit().predict(10, 100), 0);
}

TEST(MemoryFit, RefitsAThousandPointsWithinAMillisecond) {
  MemoryFit fit;
  for (int64_t i = 0; i < 1500; ++i) fit.add(sample_of(1 + i % 8, 16 + i, {1e6, 4e5, 10}, 1 + 0.01 * uniform(9, static_cast<uint64_t>(i))));
  EXPECT_EQ(fit.sample_count(), MemoryFit::max_samples);
  double best_s = 1;
  for (int repeat = 0; repeat < 20; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_GT(fit.fit().beta[1], 0);
    best_s = std::min(best_s, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(best_s, 1e-3);
#endif
}

}  // namespace
}  // namespace cotune
