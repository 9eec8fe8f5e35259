#include "train/round_prices.h"

#include <set>

#include "schedule/adapter_shape.h"
#include "train/microbatch_shape.h"
#include "train/training_job.h"

namespace cotune {
RoundPrices::RoundPrices(const ModelConfig& model, const StageMachine& machine) : model_(model), machine_(machine) {}

void RoundPrices::add(const TrainingJob& job) {
  const JobFootprint own = job.footprint();
  JobShape& shape = jobs_.emplace_back();
  shape.name = job.spec().name;
  shape.adapters = own.adapters;
  shape.moment_count = own.moment_count;
  prices_.clear();  // of the jobs that there were
  // With a profile they are part of what a round takes beside its operators.
  optimizer_s_.push_back(
      machine_.measured != nullptr ? 0 : optimizer_seconds(parameter_count(model_, shape.adapters), shape.moment_count, machine_.device));
}

StagePrices& RoundPrices::prices(bool recompute) {
  StageMachine machine = machine_;
  machine.recompute = recompute;
  return prices_.try_emplace(recompute, model_, jobs_, machine, false).first->second;
}

double RoundPrices::beside_operators(const StepPlan& plan) const {
  if (machine_.measured == nullptr) return 0;
  double tokens = 0, adapters_in_microbatches = 0, values = 0, adapters = 0;
  for (const Microbatch& microbatch : plan.microbatches) {
    tokens += static_cast<double>(microbatch.token_count());
    std::set<int32_t> jobs;
    for (const Atom& atom : microbatch.atoms) jobs.insert(atom.job);
    for (const int32_t job : jobs) adapters_in_microbatches += static_cast<double>(jobs_[static_cast<size_t>(job)].adapters.size());
  }
  for (const BatchShape& batch : plan.batches) {
    const JobShape& job = jobs_[static_cast<size_t>(batch.job)];
    values += static_cast<double>(parameter_count(model_, job.adapters));
    adapters += static_cast<double>(job.adapters.size());
  }
  return machine_.measured->round_seconds({1, static_cast<double>(plan.microbatches.size()), tokens, adapters_in_microbatches, values, adapters});
}

PricedRounds RoundPrices::of(const StepPlan& plan, std::span<const JobRound> rounds, const WorkCorrections& corrections) {
  PricedRounds priced{.replicas = {{.stage_count = 1, .work = {}, .optimizer_s = optimizer_s_}}, .corrections = {{corrections}}};
  priced.uncorrected_s = priced.corrected_s = beside_operators(plan);
  StagePrices& prices = this->prices(plan.policy.recompute);
  for (const MicrobatchShape& shape : shapes_of_microbatches(plan, rounds, jobs_.size(), prices)) {
    const StageSeconds work = prices.at({.last_layer = model_.layer_count}, shape.jobs).seconds(shape.counts);
    priced.replicas.front().work.push_back(work);
    priced.uncorrected_s += work.total();
    priced.corrected_s += corrections.of(work).total();
  }
  for (const BatchShape& batch : plan.batches) {
    const double step_s = optimizer_s_[static_cast<size_t>(batch.job)];
    priced.uncorrected_s += step_s;
    priced.corrected_s += corrections.step.of(step_s);
  }
  return priced;
}

}  // namespace cotune
