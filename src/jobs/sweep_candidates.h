/// From a job with a sweep to its candidates.
#pragma once

#include <string>

#include "jobs/job_layers.h"

namespace cotune {

/// Puts its candidates in place of every job with `sweep.grid` or `sweep.random`: copies of the job, each with the values that
/// it tries (docs/sweeps.md says which, in what order and by which names). A draw of `random` depends on the seed, the draw's
/// number and the option alone, so that further draws and values leave earlier candidates as they are. What is wrong with a
/// sweep is reported once, and the job then stays as it is, without a sweep.
void expand_sweeps(JobsFileLayers& layers, MistakeList& mistakes);

}  // namespace cotune
