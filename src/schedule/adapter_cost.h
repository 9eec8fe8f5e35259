/// The adapters' part of an operator's cost by itself.
#pragma once

#include "schedule/operators.h"

namespace cotune {

/// Of operator_cost what the operator's adapters add: flops, bytes_moved and adapter_calls.
OperatorCost adapter_cost(const ModelConfig& config, const StageShape& stage, const Operator& op,
                          const MicrobatchCounts& counts, int64_t element_size);

}  // namespace cotune
