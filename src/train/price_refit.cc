#include "train/price_refit.h"

#include <cmath>
#include <map>
#include <utility>

#include "base/error.h"

namespace cotune {

void PriceRefit::divide(const std::vector<size_t>& stage_counts) {
  has_warmed_up_ = false;
  stages_.clear();
  prices_.stages.clear();
  for (const size_t count : stage_counts) {
    stages_.emplace_back(count);
    prices_.stages.emplace_back(count, prices_.whole);
  }
  round_ = {};
}

void PriceRefit::Work::add(const StageSeconds& predicted, const StageSeconds& measured) {
  forward.add({predicted.forward, measured.forward});
  backward.add({predicted.backward, measured.backward});
}

void PriceRefit::add_replica(const ReplicaPrices& priced, std::vector<Work>& stages, std::span<const MeasuredRank> ranks) {
  const size_t microbatch_count = priced.work.size() / priced.stage_count;
  std::vector<StageSeconds> whole(microbatch_count);
  for (const MeasuredRank& rank : ranks) {
    std::map<std::pair<size_t, size_t>, StageSeconds> measured;  // by microbatch and stage
    for (const SimulatedSpan& span : rank.spans) {
      const Action& action = rank.actions[span.action];
      const double seconds = span.end_s - span.start_s;
      const auto stage = static_cast<size_t>(action.stage);
      if (action.kind == ActionKind::optimizer_step) {
        const TimeSample sample{priced.optimizer_s[static_cast<size_t>(action.job)], seconds};
        stages[stage].step.add(sample);
        whole_.step.add(sample);
      } else if (action.microbatch >= 0) {
        StageSeconds& own = measured[{static_cast<size_t>(action.microbatch), stage}];
        (action.kind == ActionKind::forward ? own.forward : own.backward) += seconds;
      }
    }
    for (const auto& [place, seconds] : measured) {
      const auto [microbatch, stage] = place;
      stages[stage].add(priced.at(microbatch, stage), seconds);
      whole[microbatch].forward += seconds.forward;
      whole[microbatch].backward += seconds.backward;
    }
  }
  StageSeconds mean;
  for (size_t microbatch = 0; microbatch < microbatch_count; ++microbatch) {
    StageSeconds predicted;
    for (size_t stage = 0; stage < priced.stage_count; ++stage) {
      predicted.forward += priced.at(microbatch, stage).forward;
      predicted.backward += priced.at(microbatch, stage).backward;
    }
    whole_.add(predicted, whole[microbatch]);
    measured_.forward += whole[microbatch].forward;
    measured_.backward += whole[microbatch].backward;
    mean.forward += predicted.forward / static_cast<double>(microbatch_count);
    mean.backward += predicted.backward / static_cast<double>(microbatch_count);
  }
  if (microbatch_count > 0) mean_microbatch_ = mean;
}

double PriceRefit::ratio_by(const WorkCorrections& corrections) const {
  const double plain = mean_microbatch_.total();
  return plain > 0 ? corrections.of(mean_microbatch_).total() / plain : 1;
}

void PriceRefit::observe(const PricedRounds& priced, std::span<const std::vector<MeasuredRank>> ranks, size_t round_count, double seconds) {
  COTUNE_CHECK(priced.replicas.size() == stages_.size() && ranks.size() == stages_.size(), "times of {} replicas for {}", ranks.size(),
               stages_.size());
  if (!std::exchange(has_warmed_up_, true)) return;
  if (round_.sample_count() > 0) {
    const auto count = static_cast<double>(round_count);
    errors_.rounds += static_cast<int64_t>(round_count);
    errors_.before_sum += count * relative_error(priced.uncorrected_s, seconds);
    errors_.after_sum += count * relative_error(predicted_s(priced, round_count) * count, seconds);
  }
  for (size_t replica = 0; replica < stages_.size(); ++replica) add_replica(priced.replicas[replica], stages_[replica], ranks[replica]);
  round_.add(priced, round_count, seconds / static_cast<double>(round_count));
  for (size_t replica = 0; replica < stages_.size(); ++replica) {
    for (size_t stage = 0; stage < stages_[replica].size(); ++stage) {
      Work& own = stages_[replica][stage];
      if (own.forward.sample_count() >= least_refit_samples) prices_.stages[replica][stage] = own.fit();
    }
  }
  if (whole_.forward.sample_count() >= least_refit_samples) prices_.whole = whole_.fit();
  round_.fit(prices_.stages);
  const double by_now = ratio_by(prices_.whole), by_settled = ratio_by(settled_);
  if (std::abs(by_now / by_settled - 1) > least_change) settled_ = prices_.whole;
}

}  // namespace cotune
