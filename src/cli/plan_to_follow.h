#pragma once

#include <map>
#include <optional>
#include <string>

#include "base/diagnostics.h"
#include "jobs/job.h"
#include "model/config/model_config.h"
#include "train/round_planner.h"

namespace cotune {

/// job_count: of the jobs file's own jobs; those after them were added to the run later, and are in no plan.
/// Of `cotune train --plan FILE`: what the plan says becomes the run's: sharing, layout, chunk size, token budget, and
/// recomputation where the plan recomputes. Returns its hybrid tasks where the sharing is hybrid.
/// run_places: where the run's options were given; one that was given with another value than the plan's is a mistake
/// at that place. model: null where it is not known; dtype: "" likewise. Mistakes in the file and in what does not
/// match go to `mistakes`, and then nothing is changed.
std::optional<FollowedTasks> follow_plan(const std::string& file, JobsFile& jobs_file, size_t job_count,
                                         const std::map<std::string, OptionPlace>& run_places, const ModelConfig* model,
                                         const std::string& dtype, Diagnostics& mistakes);

}  // namespace cotune
