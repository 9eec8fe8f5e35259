#include "schedule/launch_model.h"

#include "schedule/operator_cost.h"

namespace cotune {

LaunchCount count_launches(const ModelConfig& config, const StageShape& stage, const std::vector<Operator>& operators,
                           const MicrobatchCounts& counts) {
  const OperatorCost cost = total_cost(config, stage, operators, counts, 4);
  return {cost.frozen_calls, cost.adapter_calls};
}

}  // namespace cotune
