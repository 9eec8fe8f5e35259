#include "plan/cost/round_cost.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "base/error.h"
#include "plan/cost/stage_cost.h"
#include "plan/shapes/typical_step.h"
#include "schedule/adapter_shape.h"
#include "schedule/step_operators.h"

namespace cotune {
namespace {

/// All that tells the adapters of two layers apart.
using Site = std::tuple<int32_t, int, int, int64_t, int64_t, bool>;

std::vector<std::vector<Site>> sites_by_layer(const ModelConfig& model, const std::vector<JobShape>& jobs) {
  std::vector<std::vector<Site>> sites(static_cast<size_t>(model.layer_count));
  for (const JobShape& job : jobs) {
    for (const AdapterShape& each : job.adapters) {
      sites[static_cast<size_t>(each.layer)].emplace_back(each.job, static_cast<int>(each.method),
                                                          static_cast<int>(each.projection), each.width, each.entries,
                                                          each.drops);
    }
  }
  return sites;
}

int64_t layers_of_backward(const StepPlan& plan, const Microbatch& microbatch,
                           const std::vector<int64_t>& layers_like) {
  auto lowest = static_cast<int64_t>(layers_like.size());
  for (const BatchShape& batch : plan.batches) {
    const bool is_there = std::any_of(microbatch.atoms.begin(), microbatch.atoms.end(),
                                      [&](const Atom& atom) { return atom.job == batch.job; });
    if (is_there) lowest = std::min(lowest, batch.lowest_layer);
  }
  int64_t layers = 0;
  for (auto l = static_cast<size_t>(lowest); l < layers_like.size(); ++l) layers += layers_like[l];
  return layers;
}

}  // namespace

RoundCost::RoundCost(const RoundJobs& round) : round_(round), model_(round.model) {
  COTUNE_CHECK(!round_.jobs.empty(), "a round of no jobs");
  COTUNE_CHECK(round_.labelled_shares.empty() || round_.labelled_shares.size() == round_.jobs.size());
  shorten_model();
  round_.policy.sharing = Sharing::hybrid;
  round_.policy.hybrid_tasks.clear();
  round_.policy.layer_count = model_.layer_count;
  int64_t values = 0, adapters = 0;
  for (const JobShape& job : round_.jobs) {
    const int64_t own = parameter_count(round_.model, job.adapters);
    values += own;
    adapters += static_cast<int64_t>(job.adapters.size());
    if (round_.machine.measured == nullptr) {
      fixed_s_ += round_.corrections.step.of(optimizer_seconds(own, job.moment_count, round_.machine.device));
    }
  }
  if (round_.machine.measured == nullptr) return;
  round_terms_ = round_.machine.measured->fits().at(round_key).coefficients;
  fixed_s_ =
      round_terms_[0] + round_terms_[4] * static_cast<double>(values) + round_terms_[5] * static_cast<double>(adapters);
}

void RoundCost::shorten_model() {
  const std::vector<std::vector<Site>> sites = sites_by_layer(round_.model, round_.jobs);
  // The first layer of a run may be the lowest that is adapted, the last one has the head or other layers above it.
  std::vector<int64_t> kept(sites.size(), -1);  // place in the shortened model
  for (size_t first = 0; first < sites.size();) {
    size_t end = first;
    while (end < sites.size() && sites[end] == sites[first]) ++end;
    const auto length = static_cast<int64_t>(end - first);
    const auto keep = [&](size_t layer, int64_t stands_for) {
      kept[layer] = static_cast<int64_t>(layers_like_.size());
      layers_like_.push_back(stands_for);
    };
    keep(first, 1);
    if (length > 2) keep(first + 1, length - 2);
    if (length > 1) keep(end - 1, 1);
    first = end;
  }
  model_.layer_count = static_cast<int64_t>(layers_like_.size());
  for (size_t j = 0; j < round_.jobs.size(); ++j) {
    const JobShape& job = round_.jobs[j];
    BatchShape& batch =
        batches_.emplace_back(BatchShape{.job = static_cast<int32_t>(j), .lowest_layer = model_.layer_count});
    batch.row_lengths = quantile_lengths(job.lengths, job.batch_size);
    for (AdapterShape adapter : job.adapters) {
      adapter.layer = kept[static_cast<size_t>(adapter.layer)];
      if (adapter.layer < 0) continue;
      batch.lowest_layer = std::min(batch.lowest_layer, adapter.layer);
      adapters_.push_back(adapter);
    }
  }
}

const TaskCost& RoundCost::task(std::span<const int32_t> jobs) {
  std::vector<int32_t> key(jobs.begin(), jobs.end());
  std::sort(key.begin(), key.end());
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  return known_.emplace(key, price(key)).first->second;
}

TaskCost RoundCost::price(const std::vector<int32_t>& jobs) const {
  PlannedStep step;
  std::vector<BatchShape> batches;
  for (const int32_t job : jobs) batches.push_back(batches_[static_cast<size_t>(job)]);
  for (const AdapterShape& adapter : adapters_) {
    if (std::binary_search(jobs.begin(), jobs.end(), adapter.job)) step.adapters.push_back(adapter);
  }
  step.plan = plan_step(batches, round_.policy);
  TaskCost cost{.microbatches = static_cast<int64_t>(step.plan.microbatches.size())};
  double adapters_in_microbatches = 0;
  for (const Microbatch& microbatch : step.plan.microbatches) {
    double labelled = 0;
    std::set<int32_t> here;
    for (const Atom& atom : microbatch.atoms) {
      here.insert(atom.job);
      for (const Segment& segment : atom.segments) {
        const auto length = static_cast<double>(segment.length);
        labelled +=
            round_.labelled_shares.empty() ? length : length * round_.labelled_shares[static_cast<size_t>(atom.job)];
        cost.pads += segment.pad;
      }
    }
    for (const int32_t job : here) {
      adapters_in_microbatches += static_cast<double>(round_.jobs[static_cast<size_t>(job)].adapters.size());
    }
    step.labelled.push_back(std::llround(labelled));
    const int64_t tokens = microbatch.token_count();
    cost.tokens += tokens;
    cost.backward_layers += tokens * layers_of_backward(step.plan, microbatch, layers_like_);
  }
  const StepOperators operators(model_, step);
  const StageShape stage{.last_layer = model_.layer_count};
  std::vector<StageSeconds> work(step.plan.microbatches.size());
  for (const Action& action : step.plan.actions) {
    for (const Operator* op : operators.of(action)) {
      const double like = op->layer < 0 ? 1 : static_cast<double>(layers_like_[static_cast<size_t>(op->layer)]);
      StageSeconds& own = work[static_cast<size_t>(action.microbatch)];
      (action.kind == ActionKind::forward ? own.forward : own.backward) +=
          like * operator_seconds(model_, stage, *op, operators.counts(action.microbatch), round_.machine);
    }
  }
  for (const StageSeconds& each : work) cost.seconds += round_.corrections.of(each).total();
  if (!round_terms_.empty()) {
    cost.seconds += round_terms_[1] * static_cast<double>(cost.microbatches) +
                    round_terms_[2] * static_cast<double>(cost.tokens) + round_terms_[3] * adapters_in_microbatches;
  }
  return cost;
}

}  // namespace cotune
