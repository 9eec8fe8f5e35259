#include "cli/inputs/backbone_parts.h"

#include <fmt/format.h>

#include "base/error.h"
#include "ops/memory.h"
#include "ops/within_memory.h"

namespace cotune {

BackboneParts load_backbone(const ModelFiles& files, at::ScalarType compute, const ComputeDevice& device, BackboneUse use,
                            const std::vector<TensorShard>& shards, const std::string& asked) {
  BackboneParts parts;
  try {
    for (const TensorShard& shard : shards) {
      use.shard = shard;
      parts[shard.count].push_back(within_memory([&] { return Backbone::load(files, compute, device.device, use); }));
    }
    return parts;
  } catch (const MemoryLimitExceeded& error) {
    throw UserError(fmt::format("run.memory: {}: the model alone takes more while it is loaded: {}", asked, error.what()));
  }
}

BackboneParts emulated_backbone(const ModelConfig& config, at::ScalarType compute, const EmulatedTimes& times,
                                const std::vector<TensorShard>& shards) {
  BackboneParts parts;
  for (const TensorShard& shard : shards) parts[shard.count].push_back(Backbone::emulated(config, compute, shard, times.device));
  return parts;
}

}  // namespace cotune
