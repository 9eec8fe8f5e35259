#include "schedule/step_operators.h"

#include "base/error.h"

namespace cotune {
namespace {

bool is_executed(const Operator& op, const Action& action, int64_t layer_count) {
  switch (action.kind) {
    case ActionKind::forward:
      return true;
    case ActionKind::recompute:
      return op.layer >= action.first_layer && op.layer < action.last_layer &&
             (op.kind != OperatorKind::down_proj || !op.adapters.empty());
    case ActionKind::backward:
      if (action.first_layer < 0) return true;
      if (op.kind == OperatorKind::head) return action.first_layer == layer_count;
      return op.layer >= action.first_layer && op.layer < action.last_layer;
    default:
      return false;
  }
}

}  // namespace

StepOperators::StepOperators(const ModelConfig& config, const PlannedStep& step) : layer_count_(config.layer_count) {
  COTUNE_CHECK(step.labelled.size() == step.plan.microbatches.size());
  const StageShape stage{.last_layer = config.layer_count};
  for (size_t i = 0; i < step.plan.microbatches.size(); ++i) {
    Lists lists;
    lists.counts = count_microbatch(step.plan.microbatches[i], step.labelled[i]);
    std::vector<AdapterShape> adapters;
    for (const AdapterShape& adapter : step.adapters) {
      const auto job = static_cast<size_t>(adapter.job);
      if (job < lists.counts.job_tokens.size() && lists.counts.job_tokens[job] > 0) adapters.push_back(adapter);
    }
    lists.adapter_count = static_cast<int64_t>(adapters.size());
    lists.forward = stage_operators(config, stage, adapters, Direction::forward);
    lists.backward = stage_operators(config, stage, adapters, Direction::backward);
    lists_.push_back(std::move(lists));
  }
}

std::vector<const Operator*> StepOperators::of(const Action& action) const {
  std::vector<const Operator*> executed;
  if (action.microbatch < 0) return executed;
  const Lists& lists = at(action.microbatch);
  for (const Operator& op : action.kind == ActionKind::backward ? lists.backward : lists.forward) {
    if (is_executed(op, action, layer_count_)) executed.push_back(&op);
  }
  return executed;
}

}  // namespace cotune
