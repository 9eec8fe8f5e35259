/// The operators that the actions of a step execute, and on what: the engine's interpreter, as a list.
#pragma once

#include <map>
#include <vector>

#include "schedule/operators.h"
#include "schedule/step_plan.h"

namespace cotune {

/// A step with all that its cost depends on.
struct PlannedStep {
  StepPlan plan;
  std::vector<int64_t> labelled;       ///< per microbatch: rows that predict a learned token
  std::vector<AdapterShape> adapters;  ///< of every job of the plan
};

class StepOperators {
 public:
  /// Of the whole model on one rank. `step` must outlive this.
  StepOperators(const ModelConfig& config, const PlannedStep& step);

  const MicrobatchCounts& counts(int32_t microbatch) const { return at(microbatch).counts; }
  /// Adapters of the microbatch's jobs, over all layers.
  int64_t adapter_count(int32_t microbatch) const { return at(microbatch).adapter_count; }

  /// forward: every forward operator; recompute: those of the layers, without a down_proj that no adapter needs; backward:
  /// those of the range (action.h). Other actions execute none.
  std::vector<const Operator*> of(const Action& action) const;

 private:
  struct Lists {
    MicrobatchCounts counts;
    int64_t adapter_count = 0;
    std::vector<Operator> forward, backward;
  };
  const Lists& at(int32_t microbatch) const { return lists_[static_cast<size_t>(microbatch)]; }

  int64_t layer_count_;
  std::vector<Lists> lists_;
};

}  // namespace cotune
