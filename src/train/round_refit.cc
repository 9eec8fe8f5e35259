#include "train/round_refit.h"

#include <algorithm>
#include <utility>

#include "plan/cost/time_refit.h"

namespace cotune {

double RoundRefit::busiest_of(const Round& round, const StageCorrections& corrections) {
  double busiest = 0;
  for (size_t replica = 0; replica < round.stages.size(); ++replica) {
    for (size_t stage = 0; stage < round.stages[replica].size(); ++stage) {
      const auto& [seconds, forwards, backwards] = round.stages[replica][stage];
      const WorkCorrections own = corrections.empty() ? WorkCorrections{} : corrections[replica][stage];
      const double fixed = forwards * own.forward.per_call_s + backwards * own.backward.per_call_s;
      busiest = std::max(busiest, fixed + own.forward.scale * seconds.forward + own.backward.scale * seconds.backward);
    }
  }
  return busiest;
}

auto RoundRefit::round_of(const PricedRounds& priced, size_t round_count) -> Round {
  const auto count = static_cast<double>(round_count);
  Round round{.stages = {}, .predicted_s = priced.corrected_s / count};
  for (const ReplicaPrices& replica : priced.replicas) {
    std::vector<StageWork>& stages = round.stages.emplace_back(replica.stage_count);
    for (size_t i = 0; i < replica.work.size(); ++i) {
      StageWork& stage = stages[i % replica.stage_count];
      const auto& [forward, backward] = replica.work[i];
      stage.seconds.forward += forward / count;
      stage.seconds.backward += backward / count;
      stage.forwards += (forward > 0 ? 1 : 0) / count;
      stage.backwards += (backward > 0 ? 1 : 0) / count;
    }
  }
  round.busiest_s = busiest_of(round, priced.corrections);
  return round;
}

void RoundRefit::add(const PricedRounds& priced, size_t round_count, double seconds) {
  rounds_.push_back(round_of(priced, round_count));
  rounds_.back().measured_s = seconds;
  if (rounds_.size() > most_rounds) rounds_.pop_front();
}

double RoundRefit::carried_over(const Round& round) const {
  return round.busiest_s > 0 ? round.predicted_s * busiest_of(round, corrections_) / round.busiest_s : round.predicted_s;
}

void RoundRefit::fit(StageCorrections corrections) {
  corrections_ = std::move(corrections);
  std::vector<TimeSample> samples;
  for (const Round& round : rounds_) samples.push_back({carried_over(round), round.measured_s});
  line_ = fit_correction(samples).correction;
}

double RoundRefit::predicted_s(const PricedRounds& priced, size_t round_count) const { return line_.of(carried_over(round_of(priced, round_count))); }

}  // namespace cotune
