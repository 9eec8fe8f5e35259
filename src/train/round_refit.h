#pragma once

#include <deque>
#include <vector>

#include "plan/cost/refitted_prices.h"
#include "train/priced_rounds.h"

namespace cotune {

/// What whole rounds take beside what they are predicted to, with the corrections of stages that there are now: one line (plan/cost/
/// plan/cost/time_refit.h), so that what is no work of a stage counts too (lists, messages, waking up).
///
/// Rounds were priced with the corrections that there were then. A prediction is carried over to other ones by the busiest stage,
///   predicted · max_s W_s(now) / max_s W_s(then),   W_s: all that the rounds' microbatches take on stage s by such corrections,
/// since a correction of a stage, once learned, must not be learned again as one of the round.
class RoundRefit {
 public:
  /// Rounds that ran at once, and what each took in the mean.
  void add(const PricedRounds& priced, size_t round_count, double seconds);
  size_t sample_count() const { return rounds_.size(); }
  /// The line anew, by the newest rounds with these corrections of stages.
  void fit(StageCorrections corrections);
  /// Of each of some rounds, by the line and the corrections that it was fitted with.
  double predicted_s(const PricedRounds& priced, size_t round_count) const;

 private:
  static constexpr size_t most_rounds = 128;
  struct StageWork {
    StageSeconds seconds;                 ///< of its microbatches together, without corrections
    double forwards = 0, backwards = 0;  ///< of how many; below the lowest adapted layer there is no backward
  };
  struct Round {
    std::vector<std::vector<StageWork>> stages;  ///< by replica and stage
    double predicted_s = 0;                      ///< as it was priced, of each
    double busiest_s = 0;                        ///< by the corrections of that
    double measured_s = 0;
  };
  static double busiest_of(const Round& round, const StageCorrections& corrections);
  static Round round_of(const PricedRounds& priced, size_t round_count);
  double carried_over(const Round& round) const;

  std::deque<Round> rounds_;
  StageCorrections corrections_;
  TimeCorrection line_;
};

}  // namespace cotune
