/// What a run has learned of its prices: corrections of predicted seconds (plan/cost/time_refit.h) by the work that they are of.
#pragma once

#include <vector>

#include "plan/cost/stage_cost.h"
#include "plan/cost/time_refit.h"

namespace cotune {

/// Of a stage, or of all stages that a microbatch goes through.
struct WorkCorrections {
  TimeCorrection forward, backward;  ///< of a microbatch, all-reduces left out
  TimeCorrection step;               ///< of a job's optimizer step

  StageSeconds of(const StageSeconds& work) const { return {forward.of(work.forward), backward.of(work.backward)}; }
  bool is_none() const { return forward.is_none() && backward.is_none() && step.is_none(); }
  bool operator==(const WorkCorrections&) const = default;
};

using StageCorrections = std::vector<std::vector<WorkCorrections>>;  ///< by replica and stage; empty: none

struct RefittedPrices {
  StageCorrections stages;
  WorkCorrections whole;  ///< of all stages together: what holds however the model is divided

  bool operator==(const RefittedPrices&) const = default;
};

}  // namespace cotune
