/// Which of a job's settings determine its result, and how those of two runs differ.
#pragma once

#include <string>
#include <vector>

#include "jobs/job.h"

namespace cotune {

/// The job without what may change when a run is resumed: tenant, priority, deadline, save_steps, max_concurrent, and the paths of data,
/// chat template (what they hold is compared by a hash of the tokens) and init_from (by a checksum of its files; train/run_record.h).
JobSpec result_settings(const JobSpec& job);

/// XXH3-128 of result_settings as YAML.
std::string settings_hash(const JobSpec& job);

/// One line per option of result_settings that differs: `jobs.NAME.train.learning_rate: 0.001, now 0.002`; of weighted files one per
/// file: `jobs.NAME.data.train[1]: FILE: weight 1, now weight 2`.
std::vector<std::string> settings_differences(const JobSpec& before, const JobSpec& now);

}  // namespace cotune
