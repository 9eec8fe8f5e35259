#include "plan/cost/stage_prices.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace cotune {

StagePrices::StagePrices(const ModelConfig& model, const std::vector<JobShape>& jobs, const StageMachine& machine, bool has_clocks)
    : model_(model), jobs_(jobs), machine_(machine), has_clocks_(has_clocks) {
  using Site = std::tuple<int64_t, Projection, AdapterMethod, bool>;
  std::map<std::vector<Site>, int32_t> places;
  for (const JobShape& job : jobs) {
    std::vector<Site> sites;
    for (const AdapterShape& each : job.adapters) sites.emplace_back(each.layer, each.projection, each.method, each.drops);
    std::ranges::sort(sites);
    places_of_.push_back(places.try_emplace(std::move(sites), static_cast<int32_t>(places.size())).first->second);
  }
}

size_t StagePrices::jobs_number(const std::vector<int32_t>& jobs) {
  COTUNE_CHECK(places_of_.size() == jobs_.size(), "prices made for {} jobs are asked for {}", places_of_.size(), jobs_.size());
  const auto known = numbers_.find(jobs);
  if (known != numbers_.end()) return known->second;
  std::set<int32_t> places;
  for (const int32_t job : jobs) places.insert(places_of_[static_cast<size_t>(job)]);
  const auto [found, is_new] = numbers_of_places_.try_emplace(places, sets_.size());
  if (is_new) {
    JobSet& set = sets_.emplace_back();
    for (size_t job = 0; job < jobs_.size(); ++job) {
      const std::vector<AdapterShape>& own = jobs_[job].adapters;
      if (places.contains(places_of_[job])) set.adapters.insert(set.adapters.end(), own.begin(), own.end());
    }
    set.is_alike = cotune::layers_are_alike(model_, set.adapters);
  }
  return numbers_.emplace(jobs, found->second).first->second;
}

const PricedStage& StagePrices::at(const StageShape& stage, size_t jobs_number, bool every_layer) {
  const JobSet& set = sets_[jobs_number];
  // Of layers that are adapted alike it matters only whether they are the model's first or last.
  const bool is_alike = set.is_alike;
  const int64_t first = is_alike && stage.first_layer > 0 ? 1 : stage.first_layer;
  const int64_t last = is_alike ? (stage.last_layer == model_.layer_count ? 1 : 0) : stage.last_layer;
  const Key key{jobs_number,         every_layer,    stage.tensor_parallel, stage.is_sequence_parallel, stage.last_layer - stage.first_layer,
                stage.has_embedding, stage.has_head, first,                 last};
  const auto found = stages_.find(key);
  if (found != stages_.end()) return found->second;
  const LayerPricing pricing = set.is_alike && !every_layer ? LayerPricing::alike : LayerPricing::each;
  return stages_.emplace(key, PricedStage(model_, stage, set.adapters, machine_, pricing, has_clocks_)).first->second;
}

const StageMemory& StagePrices::resident(const StageShape& stage) {
  const auto [found, is_new] =
      resident_.try_emplace({stage.tensor_parallel, stage.first_layer, stage.last_layer, stage.has_embedding, stage.has_head});
  if (is_new) {
    int64_t moment_count = 0;
    for (const JobShape& job : jobs_) moment_count = std::max(moment_count, job.moment_count);
    found->second.weights = frozen_bytes(model_, stage, machine_);
    for (const JobShape& job : jobs_) found->second.adapters += adapter_bytes(model_, stage, job.adapters, moment_count);
  }
  return found->second;
}

}  // namespace cotune
