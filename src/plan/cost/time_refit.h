/// Predicted seconds corrected by measured ones while a run goes on: of each kind of work (a stage's forward, its backward, a whole
/// round) one line through what was predicted and what it took.
#pragma once

#include <cstddef>
#include <deque>
#include <span>

namespace cotune {

/// measured ≈ per_call_s + scale · predicted, both ≥ 0; scale within 1/most_scale and most_scale unless it is 0.
struct TimeCorrection {
  static constexpr double most_scale = 100;

  double per_call_s = 0;
  double scale = 1;

  double of(double predicted_s) const { return predicted_s > 0 ? per_call_s + scale * predicted_s : 0; }
  bool is_none() const { return per_call_s == 0 && scale == 1; }
  bool operator==(const TimeCorrection&) const = default;
};

struct TimeSample {
  double predicted_s = 0;
  double measured_s = 0;
};

/// |predicted − measured| / measured.
double relative_error(double predicted_s, double measured_s);

struct FittedCorrection {
  TimeCorrection correction;
  double error_before = 0;  ///< mean relative_error of the samples, without correction
  double error_after = 0;   ///< with it: never more
  size_t stragglers = 0;    ///< samples that the line leaves out
};

inline constexpr size_t least_refit_samples = 3;
inline constexpr double least_refit_gain = 0.01;

/// The line by non-negative least squares of the errors relative to the median line scale₀ · predicted, scale₀ being the median of
/// measured / predicted:
///   min Σ ((per_call_s + scale · pᵢ − mᵢ) / (scale₀ · pᵢ))²
/// over the samples without stragglers. Those are further from the line than three times what half of the samples are within
/// (3 · 1.4826 · median |error|, at least 5%), found again until they stay the same, from the median line on; so fewer than half of the
/// samples may be anything. Of this line, the median line and no correction the one with the least mean relative error is taken; no
/// correction unless that error is smaller by least_refit_gain: predictions that are right stay as they are. Samples without a predicted
/// or a measured time are not looked at; fewer than least_refit_samples others give no correction. Noise about the line leaves its mean,
/// not its median: corrected times add up to what was measured.
FittedCorrection fit_correction(std::span<const TimeSample> samples);

/// The newest samples of one kind of work.
class TimeRefit {
 public:
  static constexpr size_t most_samples = 128;

  void add(const TimeSample& sample);
  size_t sample_count() const { return samples_.size(); }
  /// fit_correction of them, made anew when an eighth of them has come since.
  const FittedCorrection& fit();

 private:
  std::deque<TimeSample> samples_;
  size_t since_fit_ = 0;
  FittedCorrection fit_;
};

}  // namespace cotune
