#include "engine/adapter_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "comm/host_buffer.h"

namespace cotune {
namespace {

using Json = nlohmann::json;

at::ScalarType accumulation_of(const Adapter& adapter) {
  return adapter.setup().compute == at::kDouble ? at::kDouble : at::kFloat;
}

std::vector<int64_t> sizes_of(const at::Tensor& whole, const ParameterPart& part) {
  if (part.entries.defined()) return {part.entries.numel()};
  std::vector<int64_t> sizes = whole.sizes().vec();
  if (part.dimension >= 0) sizes[static_cast<size_t>(part.dimension)] = part.count;
  return sizes;
}

/// Calls visit(tensor, part, begin, sizes) for value and moments of every parameter of these layers: of its
/// part, [begin, …) in the message. Returns the message's length.
template <typename Visit>
int64_t visit_state(const Adapter& adapter, std::span<const LayerRange> layers,
                    std::span<const ParameterPart> parts, Visit visit) {
  static const ParameterPart all;
  size_t count = 0;
  int64_t begin = 0;
  for (const Parameter& parameter : adapter.parameters()) {
    if (!contains(layers, parameter.layer)) continue;
    const ParameterPart& part = parts.empty() ? all : parts[count];
    ++count;
    for (const at::Tensor& tensor : {parameter.value, parameter.first_moment, parameter.second_moment}) {
      if (!tensor.defined()) continue;
      const std::vector<int64_t> sizes = sizes_of(tensor, part);
      visit(tensor, part, begin, sizes);
      begin += c10::multiply_integers(sizes);
    }
  }
  COTUNE_CHECK(parts.empty() || count == parts.size(), "{} parts of {} parameters", parts.size(), count);
  return begin;
}

}  // namespace

std::vector<ParameterPart> parts_of(const Adapter& adapter, std::span<const LayerRange> layers) {
  std::vector<ParameterPart> parts;
  for (const Parameter& parameter : adapter.parameters()) {
    if (!contains(layers, parameter.layer)) continue;
    const ShardPlace& place = parameter.place;
    const bool is_cut = place.dimension >= 0;
    parts.push_back(
        {place.dimension, place.begin, is_cut ? parameter.value.size(place.dimension) : 0, place.entries});
  }
  return parts;
}

Json parts_to_json(std::span<const ParameterPart> parts) {
  Json json = Json::array();
  for (const ParameterPart& part : parts) {
    Json& each = json.emplace_back(Json{part.dimension, part.begin, part.count});
    if (!part.entries.defined()) continue;
    const at::Tensor entries = part.entries.to(at::kCPU, at::kLong).contiguous();
    std::vector<uint8_t> bytes(static_cast<size_t>(entries.nbytes()));
    if (!bytes.empty()) std::memcpy(bytes.data(), entries.const_data_ptr(), bytes.size());
    each.push_back(Json::binary(std::move(bytes)));
  }
  return json;
}

std::vector<ParameterPart> parts_from_json(const Json& json) {
  std::vector<ParameterPart> parts;
  for (const Json& each : json) {
    ParameterPart& part = parts.emplace_back();
    part.dimension = each.at(0).get<int64_t>();
    part.begin = each.at(1).get<int64_t>();
    part.count = each.at(2).get<int64_t>();
    if (each.size() == 3) continue;
    const auto& bytes = each.at(3).get_binary();
    part.entries = host_buffer({static_cast<int64_t>(bytes.size() / sizeof(int64_t))}, at::kLong);
    if (!bytes.empty()) std::memcpy(part.entries.mutable_data_ptr(), bytes.data(), bytes.size());
  }
  return parts;
}

at::Tensor flat_state_like(const Adapter& adapter, std::span<const LayerRange> layers,
                           std::span<const ParameterPart> parts) {
  return host_buffer({visit_state(adapter, layers, parts, [](auto&&...) {})}, accumulation_of(adapter));
}

void copy_flat_state(const Adapter& adapter, std::span<const LayerRange> layers,
                     std::span<const ParameterPart> parts, const at::Tensor& state) {
  visit_state(
      adapter, layers, parts,
      [&](const at::Tensor& tensor, const ParameterPart& part, int64_t begin,
          const std::vector<int64_t>& sizes) {
        at::Tensor to = state.narrow(0, begin, c10::multiply_integers(sizes)).view(sizes);
        if (part.entries.defined()) {
          to.copy_(tensor.index_select(0, part.entries.to(tensor.device())));
        } else {
          to.copy_(part.dimension < 0 ? tensor : tensor.narrow(part.dimension, part.begin, part.count));
        }
      });
}

at::Tensor flat_state(const Adapter& adapter, std::span<const LayerRange> layers,
                      std::span<const ParameterPart> parts) {
  at::Tensor state = flat_state_like(adapter, layers, parts);
  copy_flat_state(adapter, layers, parts, state);
  return state;
}

void assign_flat_state(Adapter& adapter, std::span<const LayerRange> layers,
                       std::span<const ParameterPart> parts, const at::Tensor& state) {
  const int64_t length = visit_state(
      adapter, layers, parts,
      [&](const at::Tensor& tensor, const ParameterPart& part, int64_t begin,
          const std::vector<int64_t>& sizes) {
        const at::Tensor from = state.narrow(0, begin, c10::multiply_integers(sizes)).view(sizes);
        if (part.entries.defined()) {
          at::Tensor(tensor).index_copy_(0, part.entries.to(tensor.device()), from.to(tensor.device()));
        } else {
          (part.dimension < 0 ? tensor : tensor.narrow(part.dimension, part.begin, part.count)).copy_(from);
        }
      });
  COTUNE_CHECK(length == state.numel(), "{} values of an adapter that has {}", state.numel(), length);
  for (const LayerRange& range : layers) adapter.refresh(range);
}

}  // namespace cotune
