/// StepPlans as JSON: for dumps, `--explain`, and messages between ranks. to_json and from_json are inverse.
#pragma once

#include <nlohmann/json.hpp>

#include "schedule/action.h"
#include "schedule/step_plan.h"

namespace cotune {

/// {"kind": …, fields that differ from their defaults}.
nlohmann::ordered_json to_json(const Action& action);
/// Throws UserError naming the field (see action_from_json_line).
Action action_from_json(const nlohmann::json& object);

/// {"policy": {…}, "batches": [{"job", "step", "row_lengths", "lowest_layer"}],
///  "microbatches": [[{"job", "index", "segments": [[row, position, length, pad, row_length], …]}, …], …],
///  "actions": [{…}, …]}
nlohmann::ordered_json to_json(const StepPlan& plan);
/// Throws UserError naming the place when the value is not a StepPlan. Whether the plan is right is verify's to say.
StepPlan step_plan_from_json(const nlohmann::json& object);

}  // namespace cotune
