#include "plan/cost/time_refit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/nonnegative_least_squares.h"

namespace cotune {
namespace {

constexpr int most_passes = 8;
constexpr double deviations = 3 * 1.4826;  // a median of absolute values times 1.4826 is the deviation of a normal distribution
constexpr double least_distance = 0.05;

double median(std::vector<double> values) {
  const size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle), values.end());
  const double upper = values[middle];
  if (values.size() % 2 == 1) return upper;
  return (upper + *std::max_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle))) / 2;
}

double median_scale(std::span<const TimeSample> samples) {
  std::vector<double> ratios;
  for (const TimeSample& sample : samples) ratios.push_back(sample.measured_s / sample.predicted_s);
  return std::clamp(median(std::move(ratios)), 1 / TimeCorrection::most_scale, TimeCorrection::most_scale);
}

double mean_error(std::span<const TimeSample> samples, const TimeCorrection& correction) {
  double sum = 0;
  for (const TimeSample& sample : samples) sum += relative_error(correction.of(sample.predicted_s), sample.measured_s);
  return sum / static_cast<double>(samples.size());
}

/// Of each sample, whether it is near the line.
std::vector<bool> near(std::span<const TimeSample> samples, const TimeCorrection& line, double scale) {
  std::vector<double> distances;
  for (const TimeSample& sample : samples) {
    distances.push_back(std::abs(line.of(sample.predicted_s) - sample.measured_s) / (scale * sample.predicted_s));
  }
  const double most = std::max(least_distance, deviations * median(distances));
  std::vector<bool> result;
  for (const double distance : distances) result.push_back(distance <= most);
  return result;
}

TimeCorrection least_squares(std::span<const TimeSample> samples, const std::vector<bool>& kept, double scale) {
  std::vector<std::vector<double>> rows;
  std::vector<double> ones;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!kept[i]) continue;
    const double unit = scale * samples[i].predicted_s;
    rows.push_back({1 / unit, 1 / scale});
    ones.push_back(samples[i].measured_s / unit);
  }
  const std::vector<double> x = nonnegative_least_squares(rows, ones);
  return {x[0], x[1] == 0 ? 0 : std::clamp(x[1], 1 / TimeCorrection::most_scale, TimeCorrection::most_scale)};
}

}  // namespace

double relative_error(double predicted_s, double measured_s) { return std::abs(predicted_s - measured_s) / measured_s; }

FittedCorrection fit_correction(std::span<const TimeSample> all) {
  std::vector<TimeSample> samples(all.begin(), all.end());
  std::erase_if(samples, [](const TimeSample& sample) { return !(sample.predicted_s > 0 && sample.measured_s > 0); });
  FittedCorrection result;
  if (samples.empty()) return result;
  result.error_before = result.error_after = mean_error(samples, {});
  if (samples.size() < least_refit_samples) return result;
  const double scale = median_scale(samples);
  TimeCorrection line{.per_call_s = 0, .scale = scale};
  std::vector<bool> kept;
  for (int pass = 0; pass < most_passes; ++pass) {
    std::vector<bool> next = near(samples, line, scale);
    if (next == kept) break;
    kept = std::move(next);
    line = least_squares(samples, kept, scale);
  }
  for (const TimeCorrection& each : std::array{TimeCorrection{.per_call_s = 0, .scale = scale}, line}) {
    const double error = mean_error(samples, each);
    if (error > std::min(result.error_after, result.error_before - least_refit_gain)) continue;
    result.correction = each;
    result.error_after = error;
    result.stragglers = static_cast<size_t>(std::ranges::count(kept, false));
  }
  return result;
}

void TimeRefit::add(const TimeSample& sample) {
  samples_.push_back(sample);
  if (samples_.size() > most_samples) samples_.pop_front();
  ++since_fit_;
}

const FittedCorrection& TimeRefit::fit() {
  if (since_fit_ > samples_.size() / 8) {
    fit_ = fit_correction(std::vector<TimeSample>(samples_.begin(), samples_.end()));
    since_fit_ = 0;
  }
  return fit_;
}

}  // namespace cotune
