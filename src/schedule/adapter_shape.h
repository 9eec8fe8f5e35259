#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "jobs/job.h"
#include "jobs/projection.h"
#include "jobs/target_modules.h"
#include "model/config/model_config.h"

namespace cotune {

/// The adapter of one job at one projection, as the cost model sees it.
struct AdapterShape {
  int32_t job = 0;
  AdapterMethod method = AdapterMethod::lora;
  int64_t layer = 0;
  Projection projection = Projection::q;
  int64_t width = 0;    ///< LoRA rank, bottleneck size; 0 for diff pruning
  int64_t entries = 0;  ///< diff pruning: kept entries
  bool drops = false;   ///< LoRA with dropout: its input is masked
  bool operator==(const AdapterShape&) const = default;
};

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
