#include "adapter/adapter_shard.h"

#include <ATen/ATen.h>

#include "base/error.h"

namespace cotune {
namespace {

/// The tensors of a parameter that a step changes.
std::vector<at::Tensor> state_of(const Parameter& parameter) {
  std::vector<at::Tensor> tensors{parameter.value};
  for (const at::Tensor* moment : {&parameter.first_moment, &parameter.second_moment}) {
    if (moment->defined()) tensors.push_back(*moment);
  }
  return tensors;
}

void check_alike(const Adapter& whole, const Adapter& shard) {
  COTUNE_CHECK(whole.parameters().size() == shard.parameters().size(),
               "a shard of {} parameters for an adapter of {}", shard.parameters().size(),
               whole.parameters().size());
}

}  // namespace

std::unique_ptr<Adapter> make_adapter_shard(const Adapter& whole, const TensorShard& shard) {
  AdapterSetup setup = whole.setup();
  setup.shard = shard;
  std::unique_ptr<Adapter> part = make_adapter(whole.model_config(), std::move(setup));
  copy_to_shard(whole, *part);
  return part;
}

void copy_to_shard(const Adapter& whole, Adapter& shard) {
  shard.take_part(whole);
  check_alike(whole, shard);
  for (size_t i = 0; i < shard.parameters().size(); ++i) {
    const Parameter& part = shard.parameters()[i];
    const std::vector<at::Tensor> to = state_of(part), from = state_of(whole.parameters()[i]);
    for (size_t each = 0; each < to.size(); ++each) to[each].copy_(part_at(from[each], part.place, to[each]));
  }
  shard.refresh();
}

void copy_from_shard(const Adapter& shard, Adapter& whole) {
  check_alike(whole, shard);
  for (size_t i = 0; i < shard.parameters().size(); ++i) {
    const Parameter& part = shard.parameters()[i];
    const std::vector<at::Tensor> from = state_of(part), to = state_of(whole.parameters()[i]);
    for (size_t each = 0; each < to.size(); ++each) {
      if (part.place.entries.defined()) {
        at::Tensor(to[each]).index_copy_(0, part.place.entries, from[each]);
      } else {
        part_at(to[each], part.place, from[each]).copy_(from[each]);
      }
    }
  }
}

at::Tensor part_at(const at::Tensor& whole, const ShardPlace& place, const at::Tensor& part) {
  if (place.entries.defined()) return whole.index_select(0, place.entries);
  if (place.dimension < 0) return whole;
  return whole.narrow(place.dimension, place.begin, part.size(place.dimension));
}

}  // namespace cotune
