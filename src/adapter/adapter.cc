#include "adapter/adapter.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "ops/memory.h"

namespace cotune {

bool AdapterSetup::holds(int64_t layer) const {
  return held.empty() || contains(held, layer);
}

Adapter::Adapter(const ModelConfig& config, AdapterSetup setup)
    : whole_config_(config),
      config_(sharded_config(config, setup.shard.count)),
      setup_(std::move(setup)),
      sites_(static_cast<size_t>(config.layer_count)) {
  COTUNE_CHECK(!setup_.modules.empty(), "an adapter without modules");
}

SiteAdapter* Adapter::at(int64_t layer, Projection projection) const {
  return sites_[static_cast<size_t>(layer)][static_cast<size_t>(projection)];
}

void Adapter::place(int64_t layer, Projection projection, SiteAdapter* site) {
  sites_[static_cast<size_t>(layer)][static_cast<size_t>(projection)] = site;
}

int64_t Adapter::parameter_count() const {
  int64_t count = 0;
  for (const Parameter& parameter : parameters_) count += parameter.value.numel();
  return count;
}

Parameter Adapter::make_parameter(std::string name, int64_t layer, at::Tensor value) const {
  Parameter parameter;
  parameter.name = std::move(name);
  parameter.layer = layer;
  parameter.value = std::move(value);
  {
    const MemoryScope scope(MemoryKind::gradients);
    parameter.gradient = at::zeros_like(parameter.value);
  }
  const MemoryScope scope(MemoryKind::optimizer);
  const bool adamw = setup_.optimizer == OptimizerKind::adamw;
  if (adamw || setup_.momentum != 0) parameter.first_moment = at::zeros_like(parameter.value);
  if (adamw) parameter.second_moment = at::zeros_like(parameter.value);
  return parameter;
}

ShardPlace Adapter::whole_place(bool is_summand) const {
  if (setup_.shard.is_whole()) return {};
  ShardPlace place;
  place.holders = setup_.shard.count;
  place.is_summand = is_summand;
  return place;
}

ShardPlace Adapter::place_by_inputs(Projection projection, int64_t dimension) const {
  if (divides_outputs(projection)) return whole_place(true);
  if (setup_.shard.is_whole()) return {};
  return {dimension, inputs_of(projection).begin, projection_size(whole_config_, projection).in, {}, 1, false};
}

ShardPlace Adapter::place_by_outputs(Projection projection, int64_t dimension) const {
  if (!divides_outputs(projection)) return whole_place(true);
  if (setup_.shard.is_whole()) return {};
  const int64_t holders = ranks_with_same_outputs(whole_config_, projection, setup_.shard.count);
  return {dimension, outputs_of(projection).begin, projection_size(whole_config_, projection).out, {}, holders, holders > 1};
}

void Adapter::begin_selection(int64_t) { COTUNE_CHECK(false, "this method selects nothing"); }
std::vector<Adapter::NamedTensor> Adapter::end_selection(int64_t, const SumOverRanks&) {
  COTUNE_CHECK(false, "this method selects nothing");
}

void Adapter::restore_structure(const std::vector<NamedTensor>& extra, bool) {
  if (!extra.empty()) throw_user_error("`{}` is not a tensor of this adapter's method", extra.front().name);
}

void Adapter::add_selection_to(Adapter&) { COTUNE_CHECK(false, "this method selects nothing"); }

void Method::before_forward(OperatorUse&, const at::Tensor&, std::vector<LowRankTerm>&) const {}
void Method::after_forward(OperatorUse&, const at::Tensor&, at::Tensor&, const at::Tensor&) const {}
void Method::before_backward(OperatorUse&, at::Tensor&, std::vector<LowRankTerm>&) const {}
LowRankRows Method::summands(SiteUse&) const { return {}; }
void Method::after_backward(OperatorUse&, const at::Tensor&, at::Tensor&) const {}

}  // namespace cotune
