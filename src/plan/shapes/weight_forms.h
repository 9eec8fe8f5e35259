/// Frozen weights as the engine on a device at hand holds them, where a plan need not go by their values alone.
#pragma once

#include <cstdint>

#include "model/config/model_config.h"
#include "schedule/operators.h"

namespace cotune {

/// How they lie in memory: element_size, packed and parts are those of MemoryFacts (schedule/memory/memory_facts.h).
struct WeightForms {
  int64_t element_size = 2;
  bool packed = true;
  int parts = 0;
  bool are_shared = false;  ///< devices are threads of one process, which read one set of weights: it is no device's own
  bool operator==(const WeightForms&) const = default;
};

/// predict_weight_bytes of a rank that has this stage alone. copies: like ranks that spread these weights over them, itself among them.
int64_t held_weight_bytes(const ModelConfig& model, const StageShape& stage, const WeightForms& forms, int64_t copies = 1);

}  // namespace cotune
