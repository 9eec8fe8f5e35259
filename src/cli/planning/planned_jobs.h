/// The jobs of a jobs file as planning sees them: shapes and lengths, without weights.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "jobs/jobs_file.h"
#include "model/config/model_config.h"
#include "plan/shapes/job_shape.h"

namespace cotune {

struct PlannedJobs {
  ModelConfig model;
  std::vector<JobShape> jobs;
  std::map<std::string, int64_t> steps;  ///< of each job that gives them, or gives epochs of data that is read here
};

/// Lengths are those of `data.lengths`, or of the tokenized examples of `data.train`, for which the model folder's tokenizer is
/// needed. No weights are read, nor need they be there. Throws UserError.
PlannedJobs planned_jobs(const JobsFile& jobs_file);

}  // namespace cotune
