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

/// Calls visit(part, of) for each parameter of a shard and the one it is a part of, which follow one another in both. A shard
/// may hold fewer layers.
template <typename Visit>
void visit_parts(const Adapter& shard, const Adapter& whole, Visit visit) {
  auto of = whole.parameters().begin();
  for (const Parameter& part : shard.parameters()) {
    while (of != whole.parameters().end() && of->name != part.name) ++of;
    COTUNE_CHECK(of != whole.parameters().end(), "the whole adapter has no `{}`", part.name);
    visit(part, *of++);
  }
}

}  // namespace

std::unique_ptr<Adapter> make_adapter_shard(const Adapter& whole, const TensorShard& shard, std::vector<LayerRange> held) {
  AdapterSetup setup = whole.setup();
  setup.shard = shard;
  setup.held = std::move(held);
  std::unique_ptr<Adapter> part = make_adapter(whole.model_config(), std::move(setup));
  copy_to_shard(whole, *part);
  return part;
}

bool has_ended_selection(const Adapter& adapter) {
  return adapter.finished_selection_passes() > 0 && adapter.selection_passes() == 0;
}

void copy_to_shard(const Adapter& whole, Adapter& shard) {
  std::vector<Adapter::NamedTensor> structure = whole.structure();
  std::erase_if(structure, [&](const Adapter::NamedTensor& item) { return !shard.setup().holds(item.layer); });
  shard.restore_structure(structure, has_ended_selection(whole));
  visit_parts(shard, whole, [](const Parameter& part, const Parameter& of) {
    const std::vector<at::Tensor> to = state_of(part), from = state_of(of);
    for (size_t each = 0; each < to.size(); ++each) to[each].copy_(part_at(from[each], part.place, to[each]));
  });
  shard.refresh();
}

void copy_from_shard(const Adapter& shard, Adapter& whole) {
  visit_parts(shard, whole, [](const Parameter& part, const Parameter& of) {
    const std::vector<at::Tensor> from = state_of(part), to = state_of(of);
    for (size_t each = 0; each < to.size(); ++each) {
      if (part.place.entries.defined()) {
        at::Tensor(to[each]).index_copy_(0, part.place.entries, from[each]);
      } else {
        part_at(to[each], part.place, from[each]).copy_(from[each]);
      }
    }
  });
}

at::Tensor part_at(const at::Tensor& whole, const ShardPlace& place, const at::Tensor& part) {
  if (place.entries.defined()) return whole.index_select(0, place.entries);
  if (place.dimension < 0) return whole;
  return whole.narrow(place.dimension, place.begin, part.size(place.dimension));
}

}  // namespace cotune
