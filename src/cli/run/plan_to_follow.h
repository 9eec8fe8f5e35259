#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "jobs/job.h"
#include "model/config/model_config.h"
#include "plan/plan.h"
#include "schedule/pipeline/rank_plan.h"
#include "train/followed_packing.h"

namespace cotune {

/// What of a plan is no option of the run.
struct FollowedRun {
  std::optional<FollowedTasks> tasks;   ///< sharing hybrid: those of the first replica
  std::vector<PipelineLayout> layouts;  ///< of the replicas
  std::vector<FollowedPacking> packing;  ///< of the replicas
};

/// Of `cotune train --plan FILE`: what the plan says becomes the run's: replicas, stages, order, sharing, layout, chunk size, token
/// budget, and recomputation where the plan recomputes. Nothing where there is a mistake.
/// Under dtype "" the plan's becomes that of a model whose dtype is auto.
/// job_count: of the jobs file's own jobs; those after them were added to the run later, and are in no plan.
/// run_places: where the run's options were given; one that was given with another value than the plan's is a mistake
/// at that place. model: null where it is not known; dtype: "" likewise. Mistakes in the file and in what does not
/// match go to `mistakes`, and then nothing is changed.
std::optional<FollowedRun> follow_plan(const std::string& file, JobsFile& jobs_file, size_t job_count,
                                       const std::map<std::string, OptionPlace>& run_places, const ModelConfig* model,
                                       const std::string& dtype, Diagnostics& mistakes);

/// The same of a plan that was made for this run; `name` stands for the file.
std::optional<FollowedRun> follow_plan(const Plan& plan, const std::string& name, JobsFile& jobs_file, size_t job_count,
                                       const std::map<std::string, OptionPlace>& run_places, const ModelConfig* model,
                                       const std::string& dtype, Diagnostics& mistakes);

}  // namespace cotune
