/// The step that plans are made for.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/shapes/job_shape.h"

namespace cotune {

/// A row of a step: one example of one job.
struct StepRow {
  int32_t job = 0;
  int64_t tokens = 0;
  bool operator==(const StepRow&) const = default;
};

/// One step of every job, as long as can be expected: of each job's batch of B examples the i-th has the
/// length below which (i + ½)/B of its examples lie. The longest length of all jobs is there in any case, in
/// place of the longest row of the first job that has it: a plan must be able to hold it (LB-13). Rows by
/// job, then ascending. Pure.
std::vector<StepRow> typical_step(const std::vector<JobShape>& jobs);

}  // namespace cotune
