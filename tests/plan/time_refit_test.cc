// Predicted times corrected by measured ones.
#include "plan/cost/time_refit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"

namespace cotune {
namespace {

/// A value of [from, to) by the logarithm.
double drawn(uint64_t key, uint64_t index, double from, double to) {
  const double share = static_cast<double>(uniform_below(key, index, 1 << 20)) / (1 << 20);
  return from * std::pow(to / from, share);
}

std::vector<TimeSample> planted(uint64_t key, size_t count, double per_call_s, double scale, double noise = 0) {
  std::vector<TimeSample> samples;
  for (size_t i = 0; i < count; ++i) {
    const double predicted = drawn(key, i, 1e-3, 1e-1);
    const double factor = 1 + noise * (2 * drawn(key + 1, i, 1, 2) - 3);
    samples.push_back({predicted, (per_call_s + scale * predicted) * factor});
  }
  return samples;
}

double error_of(const std::vector<TimeSample>& samples, const TimeCorrection& correction) {
  double sum = 0;
  for (const TimeSample& each : samples) sum += relative_error(correction.of(each.predicted_s), each.measured_s);
  return sum / static_cast<double>(samples.size());
}

TEST(TimeRefit, RecoversPlantedCoefficients) {
  for (uint64_t key = 0; key < 100; ++key) {
    const double per_call_s = key % 3 == 0 ? 0 : drawn(key, 1000, 1e-4, 1e-2), scale = drawn(key, 1001, 0.2, 20);
    const FittedCorrection fit = fit_correction(planted(key, 30, per_call_s, scale));
    EXPECT_NEAR(fit.correction.per_call_s, per_call_s, 1e-9) << key;
    EXPECT_NEAR(fit.correction.scale, scale, 1e-7 * scale) << key;
    EXPECT_LE(fit.error_after, 1e-7);
    EXPECT_EQ(fit.stragglers, 0u);
  }
}

TEST(TimeRefit, IsNeverWorseThanNoRefitOnItsOwnSamples) {
  for (uint64_t key = 0; key < 500; ++key) {
    std::vector<TimeSample> samples;
    const size_t count = 1 + uniform_below(key, 0, 40);
    for (size_t i = 0; i < count; ++i) samples.push_back({drawn(key, 2 * i + 1, 1e-4, 1), drawn(key, 2 * i + 2, 1e-4, 1)});
    const FittedCorrection fit = fit_correction(samples);
    EXPECT_NEAR(fit.error_before, error_of(samples, {}), 1e-9);
    EXPECT_NEAR(fit.error_after, error_of(samples, fit.correction), 1e-9);
    EXPECT_LE(fit.error_after, fit.error_before) << key;
    EXPECT_GE(fit.correction.per_call_s, 0);
    EXPECT_GE(fit.correction.scale, 0);
    EXPECT_LE(fit.correction.scale, TimeCorrection::most_scale);
  }
}

TEST(TimeRefit, IgnoresStragglingActions) {
  for (uint64_t key = 0; key < 100; ++key) {
    std::vector<TimeSample> samples = planted(key, 30, 2e-3, 1.5);
    for (size_t i = 0; i < samples.size(); i += 4) samples[i].measured_s *= drawn(key, 500 + i, 2, 1000);
    const FittedCorrection fit = fit_correction(samples);
    EXPECT_NEAR(fit.correction.per_call_s, 2e-3, 1e-8) << key;
    EXPECT_NEAR(fit.correction.scale, 1.5, 1e-6) << key;
    EXPECT_EQ(fit.stragglers, 8u);
  }
}

TEST(TimeRefit, AddsUpToWhatWasMeasuredUnderNoise) {
  for (uint64_t key = 0; key < 50; ++key) {
    const std::vector<TimeSample> samples = planted(key, 128, 1e-3, 1.4, 0.2);
    const TimeCorrection correction = fit_correction(samples).correction;
    double corrected = 0, measured = 0;
    for (const TimeSample& each : samples) {
      corrected += correction.of(each.predicted_s);
      measured += each.measured_s;
    }
    EXPECT_NEAR(corrected / measured, 1, 0.03) << key;
  }
}

TEST(TimeRefit, LeavesPredictionsAloneThatAreRight) {
  EXPECT_TRUE(fit_correction(planted(3, 40, 0, 1)).correction.is_none());
  EXPECT_TRUE(fit_correction(planted(3, 40, 0, 1, 0.005)).correction.is_none());
  std::vector<TimeSample> straggling = planted(3, 40, 0, 1);
  straggling[7].measured_s *= 50;
  EXPECT_TRUE(fit_correction(straggling).correction.is_none());
}

TEST(TimeRefit, SaysNothingOfTooFewSamplesOrNone) {
  EXPECT_TRUE(fit_correction({}).correction.is_none());
  EXPECT_TRUE(fit_correction(planted(5, least_refit_samples - 1, 0, 3)).correction.is_none());
  EXPECT_FALSE(fit_correction(planted(5, least_refit_samples, 0, 3)).correction.is_none());
  const std::vector<TimeSample> nothing(20, {0, 1e-3});
  EXPECT_TRUE(fit_correction(nothing).correction.is_none());
  EXPECT_EQ(TimeCorrection({.per_call_s = 1, .scale = 2}).of(0), 0) << "what is not there takes no time";
}

TEST(TimeRefit, FollowsTheNewestSamples) {
  TimeRefit refit;
  for (const TimeSample& each : planted(7, TimeRefit::most_samples, 0, 2)) refit.add(each);
  EXPECT_NEAR(refit.fit().correction.scale, 2, 1e-6);
  for (const TimeSample& each : planted(8, TimeRefit::most_samples, 0, 5)) refit.add(each);
  EXPECT_NEAR(refit.fit().correction.scale, 5, 1e-6);
  EXPECT_EQ(refit.sample_count(), TimeRefit::most_samples);
}

}  // namespace
}  // namespace cotune
