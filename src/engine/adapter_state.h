/// Values and moments of an adapter as one message between processes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "adapter/adapter.h"

namespace cotune {

/// The part of a whole parameter that a rank has (ShardPlace).
struct ParameterPart {
  int64_t dimension = -1;  ///< that is cut; -1: none
  int64_t begin = 0, count = 0;
  at::Tensor entries;  ///< or these of its values
};

/// Of a rank's own adapter: where each of its parameters of these layers lies in the whole adapter's of that name.
std::vector<ParameterPart> parts_of(const Adapter& adapter, std::span<const LayerRange> layers);
nlohmann::json parts_to_json(std::span<const ParameterPart> parts);
std::vector<ParameterPart> parts_from_json(const nlohmann::json& parts);

/// Values and moments of the parameters of these layers, one after another in the adapter's order: [numbers]
/// of the accumulation dtype, in a host_buffer. parts: of these parameters; none: all of each.
at::Tensor flat_state(const Adapter& adapter, std::span<const LayerRange> layers,
                      std::span<const ParameterPart> parts = {});
void copy_flat_state(const Adapter& adapter, std::span<const LayerRange> layers,
                     std::span<const ParameterPart> parts, const at::Tensor& state);
/// The inverse; refreshes these layers.
void assign_flat_state(Adapter& adapter, std::span<const LayerRange> layers,
                       std::span<const ParameterPart> parts, const at::Tensor& state);
/// Of its size, with any values.
at::Tensor flat_state_like(const Adapter& adapter, std::span<const LayerRange> layers,
                           std::span<const ParameterPart> parts = {});

}  // namespace cotune
