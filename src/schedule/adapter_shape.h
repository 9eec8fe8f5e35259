#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "jobs/target_modules.h"
#include "schedule/operators.h"

namespace cotune {

/// A job's adapter at one module, as costs and memory see it: width from the module, kept entries from the
/// density, whether dropout masks its input.
AdapterShape adapter_shape(int32_t job, const AdapterSpec& adapter, const AdaptedModule& module,
                           const ModelConfig& config);
/// Of every module.
std::vector<AdapterShape> adapter_shapes(int32_t job, const AdapterSpec& adapter,
                                         const std::vector<AdaptedModule>& modules,
                                         const ModelConfig& config);

/// Trained values of one adapter: LoRA r·(in + out); bottleneck 2·width·out + width + out; diff pruning: entries.
int64_t parameter_count(const ModelConfig& config, const AdapterShape& adapter);
/// Of a job's.
int64_t parameter_count(const ModelConfig& config, std::span<const AdapterShape> adapters);

}  // namespace cotune
