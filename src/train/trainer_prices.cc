// The part of a run that corrects predicted times by measured ones.
#include <algorithm>

#include "schedule/pipeline/rank_place.h"
#include "train/trainer.h"

namespace cotune {

void Trainer::start_refit(const DeviceCosts& costs) {
  if (!options_.refits_prices || !options_.device.is_cpu() || options_.device.is_emulated()) return;
  std::vector<size_t> stage_counts{1};
  if (ranks_ != nullptr) {
    stage_counts.clear();
    for (const PipelineLayout& layout : ranks_->layouts()) stage_counts.push_back(layout.stages.size());
  } else {
    round_prices_ = std::make_unique<RoundPrices>(backbone_->config(), costs.machine);
    for (const auto& job : jobs_) round_prices_->add(*job);
  }
  if (refit_ == nullptr) {
    refit_ = std::make_unique<PriceRefit>(stage_counts);
  } else {
    refit_->divide(stage_counts);
    use_refitted_prices();
  }
}

bool Trainer::are_measured(std::span<const JobRound> rounds) const {
  // A selection's dense gradients are no operator of the list.
  return refit_ != nullptr && !evaluating_ &&
         std::ranges::none_of(rounds, [](const JobRound& round) { return round.purpose == RoundPurpose::select; });
}

void Trainer::learn_times_alone(const PricedRounds& priced, const StepPlan& plan, double seconds) {
  const std::vector<MeasuredRank> rank{{plan.actions, interpreter_->spans()}};
  refit_->observe(priced, {&rank, 1}, 1, seconds);
  use_refitted_prices();
}

void Trainer::learn_times_of_ranks(const PlannedRun& run) {
  const RankTimes& times = ranks_->times();
  const std::span<const PipelineLayout> layouts = ranks_->layouts();
  std::vector<std::vector<MeasuredRank>> replicas;
  for (size_t replica = 0; replica < layouts.size(); ++replica) {
    std::vector<MeasuredRank>& ranks = replicas.emplace_back();
    const RankPlan& plan = run.plans.replicas[replica];
    for (size_t place = 0; place < plan.ranks.size(); ++place) {
      const size_t rank = times.first_rank[replica] + place * static_cast<size_t>(layouts[replica].tensor_parallel());
      ranks.push_back({plan.ranks[place], times.ranks[rank].spans});
    }
  }
  refit_->observe(run.priced, replicas, run.round_count, times.seconds);
  use_refitted_prices();
}

void Trainer::use_refitted_prices() {
  const WorkCorrections before = planner_.corrections();
  planner_.correct(refit_->settled());
  if (rank_planner_ != nullptr) rank_planner_->correct(refit_->prices().stages);
  if (before == refit_->settled()) return;
  const RefitEvent event{.round = summary_.rounds, .ratio = refit_->settled_ratio(), .errors = refit_->errors()};
  tell([&](RunObserver& observer) { observer.on_refit(event); });
}

}  // namespace cotune
