/// The frozen model of a run in this process: whole, or in the parts that ranks compute with.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/compute_device.h"
#include "engine/backbone.h"
#include "train/emulated_times.h"

namespace cotune {

/// By the degree to which layers are divided; 1: the whole.
using BackboneParts = std::map<int64_t, std::vector<std::shared_ptr<Backbone>>>;

/// One for each of these parts of the layers. asked: the memory limit as the user gave it. check_weights_fit knows what
/// weights take at least; f32 values take more bf16 parts where they need them. Throws UserError where they do not fit.
BackboneParts load_backbone(const ModelFiles& files, at::ScalarType compute, const ComputeDevice& device, BackboneUse use,
                            const std::vector<TensorShard>& shards, const std::string& asked);

/// The same without weights, for a device that is not there.
BackboneParts emulated_backbone(const ModelConfig& config, at::ScalarType compute, const EmulatedTimes& times,
                                const std::vector<TensorShard>& shards);

}  // namespace cotune
