/// What `cotune job` has done to a run, when the run is resumed (docs/control.md).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "jobs/jobs_file.h"
#include "train/run_record.h"
#include "train/sweeps.h"
#include "train/training_job.h"

namespace cotune {

/// Of the run in the output folder, where there is one: adds to the jobs file the jobs that were added and that it does not
/// have, as run.json has them, and gives jobs the priorities that were asked for. Where the chunk size is auto, it is the one that the run
/// found at its start. What is wrong in run.json goes to `mistakes`.
void take_up_job_changes(JobsFileReading& reading, Diagnostics& mistakes);

/// Those that are not cancelled.
std::vector<std::string> names_of_jobs_to_go_on(const std::vector<std::unique_ptr<TrainingJob>>& jobs, const JobChanges& changes);

/// Cancelled jobs stay cancelled. Paused ones stay paused as long as the run has anything else to do, or stays for further jobs
/// (then all may be resumed by `cotune job`); else --resume means them, and they are taken out of `changes`. Candidates that wait at
/// a rung, by the records of their sweeps, have nothing to do.
void leave_as_they_were(const std::vector<std::unique_ptr<TrainingJob>>& jobs, const RungRecords& rungs, JobChanges& changes, bool stays);

}  // namespace cotune
