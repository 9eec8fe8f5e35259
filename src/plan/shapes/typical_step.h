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

/// `count` lengths of a histogram: the i-th is that below which (i + ½)/count of the examples lie. Ascending. Pure.
std::vector<int64_t> quantile_lengths(const LengthHistogram& lengths, int64_t count);

/// One step of every job, as long as can be expected: each job's batch has quantile_lengths. The longest
/// length of all jobs is there in any case, in place of the longest row of the first job that has it: a plan
/// must be able to hold it (LB-13). Rows by job, then ascending. Pure.
std::vector<StepRow> typical_step(const std::vector<JobShape>& jobs);

/// One job's share of a step, as rows of the only job. Pure.
std::vector<StepRow> rows_of_job(const std::vector<StepRow>& step, int32_t job);

}  // namespace cotune
