/// What a run on a device that is not there (`device: emulated:FILE`) takes in place of weights and data, and what it refuses.
#pragma once

#include <map>
#include <string>

#include "base/diagnostics.h"
#include "data/dataset.h"
#include "jobs/job.h"
#include "model/config/model_config.h"

namespace cotune {

/// Adds a mistake for every setting of the job that only means something where something is trained.
void check_emulated_job(const JobSpec& job, Diagnostics& mistakes);

/// The same for the run's options that were given, by path.
void check_emulated_run(const std::map<std::string, OptionPlace>& run_places, Diagnostics& mistakes);

/// Examples of the job's data.lengths, cut to data.max_length and the model's context; every token but the first is learned. As
/// many as the counts say; of a histogram in a file or a published one 10 000 that are drawn by the job's seed.
/// None where given_lengths finds a mistake.
JobData data_of_lengths(const JobSpec& job, const ModelConfig& config, Diagnostics& mistakes);

}  // namespace cotune
